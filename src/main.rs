//! The `ldaudit` command.

fn main() -> std::process::ExitCode {
    ldaudit::cli::main()
}
