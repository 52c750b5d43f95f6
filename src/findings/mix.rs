//! What works and may surprise: two run-times of one kind in one process, libraries of one family from different
//! releases, and what another release of the loader refuses (executable stacks).

use bstr::{BStr, ByteSlice};

use super::loading::Knowledge;
use super::telltale::stem;
use super::words;
use super::{EXECUTABLE_STACK, Evidence, Finding, MIXED_RELEASES, Owner, Part, TWO_RUN_TIMES};
use crate::ld::{Family, ImageId, Process, StepKind};
use crate::system::parent;

/// Kinds of run-times of which one process wants one, with the stems of their libraries.
const RUN_TIMES: &[(&str, &[&str], &str)] = &[
    (
        "OpenMP",
        &["libgomp", "libiomp5", "libomp"],
        "each has its own pool of threads, so more threads than processors may run, and a region of one inside a \
         region of the other can hang.",
    ),
    (
        "BLAS",
        &["libopenblas", "libmkl_rt", "libmkl_core", "libblis"],
        "each has its own pool of threads; which one computes depends on who asks.",
    ),
    (
        "protobuf",
        &["libprotobuf", "libprotobuf-lite"],
        "each has its own registry of messages; one that is registered in both can end the process.",
    ),
];

/// Families whose members are released together, with the stems of their libraries; a `*` stands for any rest.
const RELEASED_TOGETHER: &[(&str, &[&str])] = &[
    ("cuBLAS", &["libcublas", "libcublasLt"]),
    ("cuDNN", &["libcudnn", "libcudnn_*"]),
    ("NVRTC", &["libnvrtc", "libnvrtc-builtins"]),
    ("MKL", &["libmkl_*"]),
    ("TensorRT", &["libnvinfer", "libnvinfer_*"]),
];

/// Looks at what is loaded in the end.
pub fn check(process: &Process, known: &Knowledge<'_>) -> Vec<Finding> {
    let loaded: Vec<ImageId> =
        (0..process.images.len() as u32).map(ImageId).filter(|id| words::is_loaded_library(process, *id)).collect();
    let mut out = Vec::new();
    for (kind, stems, harm) in RUN_TIMES {
        out.extend(two_run_times(process, known, &loaded, kind, stems, harm));
    }
    for (family, stems) in RELEASED_TOGETHER {
        out.extend(mixed_releases(process, known, &loaded, family, stems));
    }
    out.extend(executable_stack(process, known, &loaded));
    out
}

/// The stem of a library's soname, or of its file name where it has none; a hash that a wheel's build tool put in is
/// left out.
fn stem_of(process: &Process, id: ImageId) -> &BStr {
    let image = process.image(id);
    let name = image.soname().unwrap_or_else(|| crate::system::file_name(image.name.as_bstr()));
    let stem = stem(name);
    match stem.rfind_byteset(b"-.") {
        Some(cut) if is_hash(&stem[cut + 1..]) => stem[..cut].as_bstr(),
        _ => stem,
    }
}

fn is_hash(text: &[u8]) -> bool {
    (8..=40).contains(&text.len()) && text.iter().all(|b| b.is_ascii_hexdigit())
}

fn fits(stem: &BStr, patterns: &[&str]) -> bool {
    patterns.iter().any(|p| match p.strip_suffix('*') {
        Some(prefix) => stem.starts_with(prefix.as_bytes()),
        None => stem == *p,
    })
}

fn rows(process: &Process, known: &Knowledge<'_>, ids: &[ImageId]) -> Vec<Evidence> {
    let row = |id: &ImageId| {
        let by = process.image(*id).loader.map(|l| format!(", for {}", words::label(process, l))).unwrap_or_default();
        let place = words::arrival(process, *id) + &by;
        Evidence::Copy(words::image_copy(process, known, Part::Taken, *id, place))
    };
    ids.iter().map(|id| Evidence::Image(*id)).chain(ids.iter().map(row)).collect()
}

fn two_run_times(
    process: &Process,
    known: &Knowledge<'_>,
    loaded: &[ImageId],
    kind: &str,
    stems: &[&str],
    harm: &str,
) -> Option<Finding> {
    let ids: Vec<ImageId> = loaded.iter().copied().filter(|id| fits(stem_of(process, *id), stems)).collect();
    // Several files with one soname are told as such.
    let mut sonames: Vec<&BStr> = ids.iter().filter_map(|id| process.image(*id).soname()).collect();
    sonames.sort_unstable();
    sonames.dedup();
    // Of one make several parts may be loaded: MKL's, protobuf's lite form.
    let mut makes: Vec<&[u8]> = sonames.iter().map(|s| s.split_str("_").next().unwrap_or_default()).collect();
    makes.dedup_by(|a, b| a.starts_with(b) && b.starts_with(b"libmkl"));
    if makes.len() < 2 {
        return None;
    }
    let names: Vec<String> = ids.iter().map(|id| words::label(process, *id)).collect();
    let summary = format!("{} {kind} run-times are loaded: {}", number(ids.len()), words::enumerate(&names));
    let mut finding = Finding::new(TWO_RUN_TIMES, *sonames.first()?, summary).because(harm);
    finding.evidence = rows(process, known, &ids);
    Some(finding)
}

fn number(n: usize) -> String {
    match n {
        2 => "two".into(),
        3 => "three".into(),
        n => n.to_string(),
    }
}

fn mixed_releases(
    process: &Process,
    known: &Knowledge<'_>,
    loaded: &[ImageId],
    family: &str,
    stems: &[&str],
) -> Option<Finding> {
    let members: Vec<ImageId> = loaded.iter().copied().filter(|id| fits(stem_of(process, *id), stems)).collect();
    // What lies in one directory is of one distribution, which need not be looked for.
    let directory = |id: &ImageId| parent(process.image(*id).object.real_path());
    let is_together = members.windows(2).all(|pair| directory(&pair[0]) == directory(&pair[1]));
    // The major release stands in the soname: two majors side by side are two families.
    let major = |id: ImageId| {
        let soname = process.image(id).soname()?;
        soname.find(".so.").map(|at| soname[at + 4..].split_str(".").next().unwrap_or_default())
    };
    type Members = Vec<(ImageId, String)>;
    let mut groups: Vec<(&[u8], Members)> = Vec::new();
    for id in members {
        let image = process.image(id);
        let owner = || words::owner(known, image.name.as_bstr(), Some(&image.object));
        let of_owner = if is_together { None } else { owner().map(|Owner { version, .. }| version) };
        let release = of_owner.or_else(|| words::file_version(image.object.real_path()));
        let (Some(major), Some(release)) = (major(id), release) else { continue };
        match groups.iter_mut().find(|(m, _)| *m == major) {
            Some((_, list)) => list.push((id, release)),
            None => groups.push((major, vec![(id, release)])),
        }
    }
    let (_, list) = groups.into_iter().find(|(_, list)| list.iter().any(|(_, release)| !same(release, &list[0].1)))?;
    let (first, other) = (&list[0], list.iter().find(|(_, release)| !same(release, &list[0].1))?);
    let label = |id: ImageId| words::label(process, id);
    let summary =
        format!("{family} is mixed: {} of {} works with {} of {}", label(first.0), first.1, label(other.0), other.1);
    let because = "libraries of one family are made to work with those of their own release; the loader compares \
         neither releases nor versions that both have.";
    let mut finding = Finding::new(MIXED_RELEASES, label(other.0), summary).because(because);
    finding.evidence = rows(process, known, &list.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    Some(finding)
}

/// True for releases that do not differ in what both tell: `12.1.3.1` and `12.1`.
fn same(a: &str, b: &str) -> bool {
    a.split('.').zip(b.split('.')).all(|(a, b)| a == b)
}

/// Libraries that make the stack executable: newer loaders refuse to open them.
fn executable_stack(process: &Process, known: &Knowledge<'_>, loaded: &[ImageId]) -> Option<Finding> {
    let dialect = process.dialect();
    if dialect.family != Family::Glibc || dialect.refuses_executable_stack_in_dlopen(process.host()) {
        return None;
    }
    let default = dialect.stack_is_executable_by_default();
    let ids: Vec<ImageId> = loaded
        .iter()
        .copied()
        .filter(|id| {
            let image = process.image(*id);
            let opened = matches!(process.steps[image.step.index()].kind, StepKind::Dlopen | StepKind::Import);
            let wants = image.facts().is_some_and(|f| f.stack_flags.map_or(default, |flags| flags & 1 != 0));
            opened && wants
        })
        .collect();
    let first = *ids.first()?;
    let names: Vec<String> = ids.iter().map(|id| words::label(process, *id)).collect();
    let verb = if names.len() == 1 { "makes" } else { "make" };
    let summary = format!("{} {verb} the stack of the process executable", words::enumerate(&names));
    let because = "its GNU_STACK mark asks for it, which is usually an accident of hand-written assembly. This loader \
         obeys; glibc 2.41 and later refuse such a library in dlopen: cannot enable executable stack as shared object \
         requires.";
    let mut finding = Finding::new(EXECUTABLE_STACK, words::label(process, first), summary).because(because);
    finding.evidence = rows(process, known, &ids);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_the_same_as_far_as_both_tell() {
        assert!(same("12.1.3.1", "12.1") && same("9", "9"));
        assert!(!same("11.10.3.66", "11.11.3.6"));
    }

    #[test]
    fn stems_fit_whole_or_by_their_beginning() {
        assert!(fits("libcudnn_ops".into(), &["libcudnn", "libcudnn_*"]));
        assert!(!fits("libcudnnx".into(), &["libcudnn", "libcudnn_*"]));
        assert!(is_hash(b"a34b3233") && !is_hash(b"lite") && !is_hash(b"builtins"));
    }
}
