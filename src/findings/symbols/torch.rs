//! Symbols of torch's C++ interface, which changes with every release: what does the installed torch export in place of
//! what a file wants?

use bstr::{BStr, ByteSlice};
use memchr::memmem::Finder;

use super::{MAX_EVIDENCE, asked_by, known_releases, listed, request};
use crate::elf::symbols::Table;
use crate::findings::loading::Knowledge;
use crate::findings::prove::quoted;
use crate::findings::{BUILT_FOR_OTHER_TORCH, Evidence, Finding, Part, Remedy, demangle, words};
use crate::ld::{ImageId, Process, Unresolved};

/// Namespaces of torch's libraries.
const NAMESPACES: &[&str] = &["c10::", "at::", "torch::", "caffe2::"];
/// Beginnings of file names of torch's libraries.
const FILES: &[&str] = &["libc10", "libtorch", "libcaffe2", "libshm"];
/// Exported names that hold the wanted identifier and are taken apart, for one symbol.
const MAX_CANDIDATES: usize = 4000;
/// Symbols of one file that are compared.
const MAX_COMPARED: usize = 8;

/// True for a C++ name of one of torch's namespaces, or what a compiler makes for one of its types.
pub fn is_of_torch(symbol: &BStr) -> bool {
    let Some(name) = demangle::qualified(symbol) else { return false };
    let name = name.rsplit_once(" for ").map_or(name.as_str(), |(_, of)| of);
    let name = name.rsplit_once("thunk to ").map_or(name, |(_, of)| of);
    NAMESPACES.iter().any(|namespace| name.starts_with(namespace))
}

/// The libraries of torch that are in the process.
pub struct Libraries {
    images: Vec<ImageId>,
    /// The one that stands for all: that of the first symbol.
    chosen: Option<ImageId>,
}

impl Libraries {
    /// Those that were loaded when an image was; none for a file that is torch's own.
    pub fn of(process: &Process, known: &Knowledge<'_>, asker: ImageId) -> Libraries {
        let owner = |id: ImageId| {
            let image = process.image(id);
            words::owner(known, image.name.as_bstr(), Some(&image.object))
        };
        let own = owner(asker).is_some_and(|o| o.package == "torch");
        let step = process.image(asker).step;
        let images = super::meant::present(process, step)
            .filter(|id| {
                let label = words::label(process, *id);
                *id != asker && !own && FILES.iter().any(|f| label.starts_with(f))
            })
            .collect();
        Libraries { images, chosen: None }
    }

    /// The library in which the class of the first symbol, or else its namespace, is at home. It stands for all that are
    /// asked about later: they have one cause.
    pub fn provider(&mut self, process: &Process, symbol: &BStr) -> Option<ImageId> {
        if self.chosen.is_none() {
            self.chosen = self.home(process, symbol);
        }
        self.chosen
    }

    fn home(&self, process: &Process, symbol: &BStr) -> Option<ImageId> {
        let name = demangle::qualified(symbol)?;
        let parts = demangle::components(name.rsplit_once(" for ").map_or(name.as_str(), |(_, of)| of));
        let above = &parts[..parts.len().saturating_sub(1)];
        // The class and its namespaces as a mangled name has them: `3c105Error`.
        let prefix = |parts: &[&str]| -> String { parts.iter().map(|p| format!("{}{p}", p.len())).collect() };
        for parts in (1..=above.len()).rev().map(|n| &above[..n]).filter(|p| p.iter().all(|p| !p.contains('<'))) {
            let finder = Finder::new(prefix(parts).as_bytes()).into_owned();
            let count =
                |id: &ImageId| process.symbols(*id).map_or(0, |s| exported(&s.table, &finder).take(1000).count());
            let best = self.images.iter().map(|id| (count(id), *id)).max_by_key(|(n, id)| (*n, std::cmp::Reverse(*id)));
            if let Some((1.., id)) = best {
                return Some(id);
            }
        }
        self.images.first().copied()
    }
}

/// Definitions whose names hold a text.
fn exported<'t>(table: &'t Table, text: &'t Finder<'t>) -> impl Iterator<Item = &'t BStr> {
    table.hashed().filter(|s| s.is_definition()).filter_map(|s| table.name(&s)).filter(|name| text.find(name).is_some())
}

/// How an exported symbol is like the one that is wanted. The first is the closest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Likeness {
    /// The same but for the two forms of `std::string` (`_GLIBCXX_USE_CXX11_ABI`); true when the wanted one is the new.
    StringForm { wants_new: bool },
    /// The same name with other parameters: the exported one.
    Parameters(String),
    /// The same name in another (inline) namespace: the exported one.
    Namespace(String),
}

/// `std::string` in its new form as it stands in demangled names.
const NEW_STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// A text with both forms of `std::string` made one.
fn one_string(text: &str) -> String {
    text.replace(NEW_STRING, "std::string").replace("[abi:cxx11]", "").replace("__cxx11::", "")
}

/// The identifier by which the name can be found among others: that of the function, or of the class for what has none.
fn identifier(parts: &[&str]) -> Option<String> {
    parts.iter().rev().find_map(|part| {
        let plain = part.split(['<', '[', '(']).next().unwrap_or_default().trim_start_matches('~');
        let is_name = !plain.is_empty() && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        (is_name && !plain.starts_with("operator")).then(|| format!("{}{plain}", plain.len()))
    })
}

/// The closest of what the tables export.
fn closest<'t>(tables: impl Iterator<Item = &'t Table>, symbol: &BStr) -> Option<Likeness> {
    let wanted = demangle::full(symbol)?;
    let name = demangle::qualified(symbol)?;
    let parts = demangle::components(&name);
    let finder = Finder::new(identifier(&parts)?.as_bytes()).into_owned();
    let mut best: Option<Likeness> = None;
    let mut looked_at = 0;
    for table in tables {
        for candidate in exported(table, &finder) {
            looked_at += 1;
            if looked_at > MAX_CANDIDATES {
                return best;
            }
            let Some(other_name) = demangle::qualified(candidate) else { continue };
            let likeness = if one_string(&other_name) == one_string(&name) {
                let Some(other) = demangle::full(candidate) else { continue };
                if one_string(&other) == one_string(&wanted) {
                    Likeness::StringForm { wants_new: symbol.contains_str("cxx11") }
                } else {
                    Likeness::Parameters(other)
                }
            } else if in_other_namespace(&parts, &demangle::components(&other_name)) {
                let Some(other) = demangle::full(candidate) else { continue };
                Likeness::Namespace(other)
            } else {
                continue;
            };
            if best.as_ref().is_none_or(|b| likeness < *b) {
                best = Some(likeness);
            }
        }
    }
    best
}

/// True when one name has a namespace in the middle that the other lacks, and both are else alike: `at::_ops::f` and
/// `at::_ops::v1::f`.
fn in_other_namespace(a: &[&str], b: &[&str]) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    if short.len() + 1 != long.len() || short.len() < 2 {
        return false;
    }
    (1..long.len() - 1).any(|gap| short[..gap] == long[..gap] && short[gap..] == long[gap + 1..])
}

/// A file that wants what the installed torch does not export.
pub fn finding(process: &Process, known: &Knowledge<'_>, provider: ImageId, references: &[&Unresolved]) -> Finding {
    let asker = references[0].image;
    let who = words::label(process, asker);
    let image = process.image(asker);
    let owner = words::owner(known, image.name.as_bstr(), Some(&image.object));
    let library = process.image(provider);
    let library_owner = words::owner(known, library.name.as_bstr(), Some(&library.object));
    let installed = known.torch.and_then(|t| t.version.as_ref()).map(words::shown);
    let installed = installed.or_else(|| library_owner.filter(|o| o.package == "torch").map(|o| o.version));
    let what = owner.as_ref().map_or_else(|| named(process, asker), |o| format!("{} {}", o.package, o.version));
    let than = installed.as_ref().map_or_else(String::new, |v| format!(" than {v}"));
    let label = words::label(process, provider);
    let exporter = if references.len() == 1 { label.as_str() } else { "which" };
    let missing = listed(references);
    let summary = format!("{what} was built for another torch{than}, {exporter} does not export {missing}");
    let summary = if references.len() == 1 { summary.replacen(", ", ": ", 1) } else { summary };
    let mut finding = Finding::new(BUILT_FOR_OTHER_TORCH, who.clone(), summary);
    finding = finding.with(Evidence::Decision(request(process, asker, provider).unwrap_or(library.decision)));
    finding = finding.with(Evidence::Image(provider));
    finding.evidence.extend(asked_by(process, known, references));
    let arrival = words::arrival(process, provider);
    finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::Taken, provider, arrival)));
    let mut because = compared(process, asker, references, &label);
    because.extend(known_releases(references));
    let requires = (known.requires)(image.name.as_bstr());
    let requirement = requires.iter().find(|line| is_requirement_of(line, "torch"));
    let package = owner.as_ref().map_or_else(|| named(process, asker), |o| o.package.clone());
    if let Some(requirement) = requirement {
        because.push(format!("{what} requires {requirement}."));
    }
    finding = finding.because(because.join(" "));
    if let Some(installed) = &installed {
        finding.remedies.extend(remedies(&package, &what, requirement.and_then(|r| pinned(r)), installed));
    }
    finding
}

/// What brings a package and torch together again.
fn remedies(package: &str, what: &str, pinned: Option<&str>, installed: &str) -> Vec<Remedy> {
    let remedy = |summary: String, commands: Vec<String>| Remedy { summary, commands, verified: false, after: None };
    let own = match crate::findings::telltale::companion(package, installed) {
        Some(release) => {
            let summary = format!("install {package} {release}, which was built for torch {installed}");
            remedy(summary, vec![format!("pip install {package}=={release}")])
        }
        None if pinned.is_some() => {
            remedy(format!("install the {package} that was built for torch {installed}"), Vec::new())
        }
        None => {
            remedy(format!("install the {package} that was built for torch {installed}, or build it anew"), Vec::new())
        }
    };
    let other = pinned.map(|version| {
        let summary = format!("install torch {version}, for which {what} was built");
        remedy(summary, vec![format!("pip install torch=={version}")])
    });
    // What can be pasted goes first.
    match other {
        Some(other) if own.commands.is_empty() => vec![other, own],
        other => std::iter::once(own).chain(other).collect(),
    }
}

/// What torch has to do with a file that does not load.
pub struct OtherTorch {
    /// Says it.
    pub because: String,
    /// Changes that bring the two together.
    pub remedies: Vec<Remedy>,
}

/// Whether the package of a file names another torch than the one that is installed.
pub fn pinned_to_another(process: &Process, known: &Knowledge<'_>, id: ImageId) -> Option<OtherTorch> {
    let installed = words::shown(known.torch?.version.as_ref()?);
    let image = process.image(id);
    let owner = words::owner(known, image.name.as_bstr(), Some(&image.object))?;
    let requires = (known.requires)(image.name.as_bstr());
    let requirement = requires.iter().find(|line| is_requirement_of(line, "torch"))?;
    let version = pinned(requirement)?;
    let release = |v: &str| v.split('+').next().unwrap_or_default().to_owned();
    if release(version) == release(&installed) {
        return None;
    }
    let what = format!("{} {}", owner.package, owner.version);
    let because =
        format!("{what} requires {requirement}, and torch {installed} is installed: it was built for another one.");
    Some(OtherTorch { because, remedies: remedies(&owner.package, &what, Some(version), &installed) })
}

/// For a library of torch that a file by itself lacks: inside of Python `import torch` has loaded it before. `None` where
/// torch is in the process, and for what is no library of torch.
pub fn comes_with_import(process: &Process, known: &Knowledge<'_>, missing: &BStr) -> Option<OtherTorch> {
    let target = process.images.first().filter(|_| known.torch.is_none())?;
    let is_library = target.facts().is_some_and(|f| f.interpreter.is_none());
    if !is_library || missing.contains(&b'/') || !FILES.iter().any(|f| missing.starts_with(f.as_bytes())) {
        return None;
    }
    let command = format!("ldaudit torch --dlopen {}", quoted(target.name.as_bstr()));
    let summary = "look at it in a process that has imported torch".to_owned();
    let because = "it is a library of torch: in Python `import torch` loads it before an extension that needs it.";
    let remedies = vec![Remedy { summary, commands: vec![command], verified: false, after: None }];
    Some(OtherTorch { because: because.to_owned(), remedies })
}

/// A file in words: an extension module is called `_C.so` as often as not, so its package goes with it.
fn named(process: &Process, id: ImageId) -> String {
    let label = words::label(process, id);
    let directory = crate::system::parent(process.image(id).name.as_bstr());
    let package = words::shown(crate::system::file_name(directory));
    if label.starts_with("lib") || package.is_empty() { label } else { format!("{package}/{label}") }
}

/// Sentences about how the first symbols differ from what is exported.
fn compared(process: &Process, asker: ImageId, references: &[&Unresolved], label: &str) -> Vec<String> {
    let step = process.image(asker).step;
    let tables = || {
        super::meant::present(process, step)
            .filter(|id| FILES.iter().any(|f| words::label(process, *id).starts_with(f)))
            .filter_map(|id| process.symbols(id).map(|s| &s.table))
    };
    let mut out: Vec<String> = Vec::new();
    let mut absent = 0;
    let mut strings = 0;
    let few = &references[..references.len().min(MAX_COMPARED)];
    for u in few {
        let name = demangle::full(u.symbol.as_bstr()).unwrap_or_default();
        let name = clipped(&name);
        match closest(tables(), u.symbol.as_bstr()) {
            Some(Likeness::StringForm { wants_new }) => {
                strings += 1;
                if strings == 1 {
                    let name = one_string(&name);
                    let (wants, has) = if wants_new { ("new", "old") } else { ("old", "new") };
                    out.push(format!(
                        "It is compiled for the {wants} form of std::string (_GLIBCXX_USE_CXX11_ABI={}) and this torch exports {name} with the {has} one.",
                        u8::from(wants_new)
                    ));
                }
            }
            Some(Likeness::Parameters(_)) if out.len() >= 2 => {}
            Some(Likeness::Parameters(other)) => {
                out.push(format!("It wants {name}, and this torch exports {}.", clipped(&other)));
            }
            Some(Likeness::Namespace(_)) if out.len() >= 2 => {}
            Some(Likeness::Namespace(other)) => {
                out.push(format!("It wants {name}, and this torch exports {} in another namespace.", clipped(&other)));
            }
            None => absent += 1,
        }
    }
    if out.is_empty() && absent > 0 {
        out.push(match absent {
            1 => format!("Neither {label} nor any other library of this torch exports anything of that name."),
            _ => "The libraries of this torch export nothing of those names.".to_owned(),
        });
    }
    out
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// True for a requirement of a distribution: `torch==2.4.0`, `torch (>=1.8)`, not `torchvision`. One with a marker of an
/// extra is none that holds always.
fn is_requirement_of(line: &str, name: &str) -> bool {
    let Some(rest) = line.trim().strip_prefix(name) else { return false };
    let ends = rest.chars().next().is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.')));
    ends && !rest.contains("extra")
}

/// The one version that a requirement allows: `2.4.0` of `torch==2.4.0`.
fn pinned(requirement: &str) -> Option<&str> {
    let (_, version) = requirement.split_once("==")?;
    let version = version.split([';', ',', ')', ' ']).next()?.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_');
    (!version.is_empty() && version.chars().all(plain)).then_some(version)
}

/// Keeps the evidence of one finding small.
const _: () = assert!(MAX_COMPARED <= MAX_EVIDENCE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_torch_are_known_by_their_namespace() {
        for symbol in
            ["_ZNK3c105Error4whatEv", "_ZTIN2at6TensorE", "_ZN5torch3jit6ModuleD1Ev", "_ZN2at4_ops3add4callEv"]
        {
            assert!(is_of_torch(symbol.into()), "{symbol}");
        }
        for symbol in ["_ZNSt6vectorIN2at6TensorEE4sizeEv", "_ZN4myat1fEv", "printf", "_ZN3mlp1fEN2at6TensorE"] {
            assert!(!is_of_torch(symbol.into()), "{symbol}");
        }
    }

    #[test]
    fn forms_of_a_name_are_told_apart() {
        let old = demangle::full("_ZN3c105ErrorC1ESsSsPKv".into()).expect("demangled");
        let new = "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES6_PKv";
        let new = demangle::full(new.into()).expect("demangled");
        assert_ne!(old, new);
        assert_eq!(one_string(&old), one_string(&new));
        assert!(in_other_namespace(&["at", "f", "g"], &["at", "v1", "f", "g"]));
        assert!(!in_other_namespace(&["at", "f"], &["c10", "at", "f"]));
        assert!(!in_other_namespace(&["at", "f"], &["at", "f", "g"]));
        assert_eq!(identifier(&["c10", "Error", "~Error"]).as_deref(), Some("5Error"));
        assert_eq!(identifier(&["at", "f<int>"]).as_deref(), Some("1f"));
        assert_eq!(identifier(&["c10", "operator<<"]).as_deref(), Some("3c10"));
    }

    #[test]
    fn requirements_are_read_as_metadata_has_them() {
        assert!(is_requirement_of("torch==2.4.0", "torch") && is_requirement_of("torch (>=1.8)", "torch"));
        assert!(!is_requirement_of("torchvision==0.19", "torch"));
        assert!(!is_requirement_of("torch ; extra == 'gpu'", "torch"));
        assert_eq!(pinned("torch==2.4.0"), Some("2.4.0"));
        assert_eq!(pinned("torch (==2.1.2) ; python_version < '3.12'"), Some("2.1.2"));
        assert_eq!(pinned("torch>=2"), None);
    }
}
