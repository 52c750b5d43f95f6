//! Is the man page in the tree the one that the arguments give?

use std::process::Command;

/// Runs `ldaudit generate ...` and gives back what it prints.
fn generate(words: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ldaudit")).arg("generate").args(words).output().expect("ldaudit runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_man_page_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/man/ldaudit.1");
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let made = generate(&["man"]);
    let line = there.lines().zip(made.lines()).position(|(a, b)| a != b);
    assert!(
        there == made,
        "man/ldaudit.1 is stale (first difference in line {}): cargo run -- generate man > man/ldaudit.1",
        line.unwrap_or_else(|| there.lines().count().min(made.lines().count())) + 1
    );
}

#[test]
fn the_man_page_names_every_option_of_the_help() {
    let help = Command::new(env!("CARGO_BIN_EXE_ldaudit")).arg("--help").output().expect("ldaudit runs");
    let page = generate(&["man"]).replace("\\-", "-");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    let options: Vec<&str> = help
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | '<' | '='))
        .map(|w| w.trim_end_matches('.'))
        .filter(|w| w.starts_with("--") && w.len() > 2)
        .collect();
    assert!(options.len() > 10, "the help was not understood");
    for option in options {
        assert!(page.contains(option), "{option} is not in the man page");
    }
}

#[test]
fn completions_know_the_options_and_the_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = generate(&["completions", shell]);
        for word in ["assume-ldconfig", "generate", "completions"] {
            assert!(text.contains(word), "{shell}: {word} is missing");
        }
    }
}

#[test]
fn a_file_with_the_name_of_a_command_is_reached_by_a_slash_or_two_dashes() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generate-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("scratch directory");
    std::fs::copy(env!("CARGO_BIN_EXE_ldaudit"), dir.join("generate")).expect("copy");
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
            .args(["--format", "ldd"])
            .args(words)
            .current_dir(&dir)
            .output()
            .expect("ldaudit runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let expected = run(&["./generate"]);
    assert!(expected.0 == Some(0) && expected.1.contains("libc"), "{expected:?}");
    assert_eq!(run(&["--", "generate"]), expected);
    // Behind an option or another target it is a target too: a command stands first.
    assert_eq!(run(&["generate"]), expected);
    std::fs::remove_dir_all(&dir).expect("clean up");
}
