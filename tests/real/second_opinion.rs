//! A second parser as witness: for every ELF file of this machine `elf::Facts`, read from segments in microseconds, must
//! equal what goblin's full parse reads from the same bytes, versions by section headers included.
//!
//! The environments that `tests/make-boxes` made are compared too; without them that part is told as an ignored test,
//! which `LDAUDIT_REQUIRE=boxes` makes fail.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Part;
use bstr::{BStr, BString, ByteSlice};
use goblin::elf::dynamic::{DT_FLAGS, DT_FLAGS_1};
use goblin::elf::program_header as ph;
use goblin::elf::{Elf, note};
use ldaudit::elf::{Facts, Layout, Reader};
use ldaudit::system::{Files, Live};
use libtest_mimic::Failed;

/// Lists the trials.
pub fn list(part: &mut Part) {
    let mut seen = HashSet::new();
    for d in ["/usr/bin", "/usr/sbin", "/usr/lib", "/lib", "/lib64", "/usr/local/lib", "/usr/libexec"] {
        if std::fs::canonicalize(d).is_ok_and(|real| real.is_dir() && seen.insert(real)) {
            part.add(d, move || compare_all(Path::new(d)));
        }
    }
    for (_, d) in part.boxes() {
        part.add(d.display().to_string(), move || compare_all(&d));
    }
}

fn compare_all(directory: &Path) -> Result<(), Failed> {
    let mut seen = HashSet::new();
    let (mut files, mut refused, mut sectionless) = (0usize, Vec::new(), 0usize);
    let mut differences = Vec::new();
    for entry in walkdir::WalkDir::new(directory).into_iter().filter_map(Result::ok) {
        let is_new = entry.metadata().is_ok_and(|m| m.is_file() && m.len() >= 64 && seen.insert((m.dev(), m.ino())));
        if !is_new || !is_elf(entry.path()) {
            continue;
        }
        match compare(entry.path()) {
            Ok(found) => {
                files += 1;
                sectionless += usize::from(found.without_sections);
                let path = entry.path().display();
                differences.extend(found.differences.into_iter().map(|d| format!("{path}: {d}")));
            }
            Err(reason) => refused.push(format!("{}: {reason}", entry.path().display())),
        }
    }
    eprintln!(
        "{}: {files} files equal but for {}, {sectionless} without section headers; goblin refuses {}",
        directory.display(),
        differences.len(),
        refused.len()
    );
    // What only one of the two can read proves nothing; there must not be much of it.
    if refused.len() > files / 50 {
        return Err(format!("goblin refuses too many to be a witness:\n{}", refused.join("\n")).into());
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n").into()) }
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0u8; 4];
    std::fs::File::open(path).is_ok_and(|mut f| f.read_exact(&mut magic).is_ok() && &magic == b"\x7fELF")
}

#[derive(Default)]
struct Compared {
    differences: Vec<String>,
    without_sections: bool,
}

impl Compared {
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, facts: T, witness: T) {
        if facts != witness {
            self.differences.push(format!("{what}: facts {facts:?}, goblin {witness:?}"));
        }
    }
}

fn bytes(text: Option<&str>) -> Option<BString> {
    text.map(BString::from)
}

fn compare(path: &Path) -> Result<Compared, String> {
    let name = <[u8] as ByteSlice>::from_path(path).ok_or("no path")?;
    let file = Live::new().open(name.as_bstr()).map_err(|e| e.to_string())?;
    let mapped = file.map(0, file.meta.size).map_err(|e| e.to_string())?;
    let elf = Elf::parse(&mapped).map_err(|e| e.to_string())?;
    let layout = Layout::of_ident(&mapped).ok_or("no layout")?;
    let mut reader = Reader::new(&file);
    let facts = Facts::read(&mut reader, layout).ok_or("no facts")?;

    let mut c = Compared::default();
    c.equal("64-bit", layout.is_64, elf.is_64);
    c.equal("little-endian", !layout.big_endian, elf.little_endian);
    c.equal("e_type", facts.header.file_type, elf.header.e_type);
    c.equal("e_machine", facts.header.machine, elf.header.e_machine);
    c.equal("e_flags", facts.header.flags, elf.header.e_flags);
    // One that the kernel refuses, as the empty one of debug data, stands as an empty text.
    let interpreter = facts.interpreter.clone().filter(|_| facts.interpreter_error.is_none());
    c.equal("interpreter", interpreter, bytes(elf.interpreter));
    let loads = elf.program_headers.iter().filter(|p| p.p_type == ph::PT_LOAD);
    c.equal(
        "segments",
        facts.segments.iter().map(|s| (s.address, s.offset, s.file_size, s.memory_size, s.align, s.flags)).collect(),
        loads.map(|p| (p.p_vaddr, p.p_offset, p.p_filesz, p.p_memsz, p.p_align, p.p_flags)).collect::<Vec<_>>(),
    );
    let header = |kind| elf.program_headers.iter().rfind(|p| p.p_type == kind);
    c.equal("stack", facts.stack_flags, header(ph::PT_GNU_STACK).map(|p| p.p_flags));
    let tls = facts.tls.map(|t| (t.size, t.align));
    c.equal("TLS", tls, header(ph::PT_TLS).filter(|p| p.p_memsz > 0).map(|p| (p.p_memsz, p.p_align)));
    dynamic(&mut c, &facts, &elf);
    versions(&mut c, &facts, &elf);
    notes(&mut c, &facts, &elf, &mapped);
    c.equal("defects", facts.defects.clone(), expected_defects(path, &facts));
    Ok(c)
}

/// Files of distributions are whole, but for those that were stripped to their debug data.
fn expected_defects(path: &Path, facts: &Facts) -> Vec<ldaudit::elf::Defect> {
    let is_debug_data = path.extension().is_some_and(|e| e == "debug") || path.starts_with("/usr/lib/debug");
    if is_debug_data { facts.defects.clone() } else { Vec::new() }
}

fn dynamic(c: &mut Compared, facts: &Facts, elf: &Elf<'_>) {
    let Some(dynamic) = &elf.dynamic else {
        c.equal("dynamic", facts.has_dynamic, false);
        return;
    };
    c.equal("soname", facts.soname.clone(), bytes(elf.soname));
    c.equal(
        "needed",
        facts.needed().cloned().collect(),
        elf.libraries.iter().map(|l| BString::from(*l)).collect::<Vec<_>>(),
    );
    c.equal("rpath", facts.rpath.clone(), bytes(elf.rpaths.last().copied()));
    c.equal("runpath", facts.runpath.clone(), bytes(elf.runpaths.last().copied()));
    let last = |tag| dynamic.dyns.iter().rfind(|d| d.d_tag == tag).map_or(0, |d| d.d_val);
    c.equal("DT_FLAGS", facts.flags, last(DT_FLAGS));
    c.equal("DT_FLAGS_1", facts.flags_1, last(DT_FLAGS_1));
    let entry = |tag| dynamic.dyns.iter().rfind(|d| d.d_tag == tag).map(|d| d.d_val);
    use goblin::elf::dynamic as dt;
    c.equal("DT_STRTAB", facts.dynamic.string_table, entry(dt::DT_STRTAB));
    c.equal("DT_SYMTAB", facts.dynamic.symbol_table, entry(dt::DT_SYMTAB));
    c.equal("DT_GNU_HASH", facts.dynamic.gnu_hash, entry(dt::DT_GNU_HASH));
    c.equal("DT_HASH", facts.dynamic.hash, entry(dt::DT_HASH));
    c.equal("DT_VERSYM", facts.dynamic.version_symbols, entry(dt::DT_VERSYM));
}

type Need = (BString, u16, Vec<(BString, u32, u16, u16)>);
type Definition = (BString, u16, u32, u16, u16);

fn versions(c: &mut Compared, facts: &Facts, elf: &Elf<'_>) {
    if elf.section_headers.is_empty() {
        // goblin finds the version tables by section headers only.
        c.without_sections = true;
        return;
    }
    let text = |at: usize| BString::from(elf.dynstrtab.get_at(at).unwrap_or("?"));
    let needs: Vec<Need> = elf
        .verneed
        .iter()
        .flat_map(|s| s.iter())
        .map(|n| {
            let versions = n.iter().map(|a| (text(a.vna_name), a.vna_hash, a.vna_flags, a.vna_other)).collect();
            (text(n.vn_file), n.vn_version, versions)
        })
        .collect();
    let ours = facts.version_needs.iter().flatten().map(|n| {
        let versions = n.versions.iter().map(|v| (v.name.clone(), v.hash, v.flags, v.index)).collect();
        (n.file.clone(), n.revision, versions)
    });
    c.equal("version needs", ours.collect(), needs);
    let definitions: Vec<Definition> = elf
        .verdef
        .iter()
        .flat_map(|s| s.iter())
        .map(|d| {
            let name = d.iter().next().map_or_else(|| "?".into(), |a| text(a.vda_name));
            (name, d.vd_version, d.vd_hash, d.vd_flags, d.vd_ndx)
        })
        .collect();
    let ours = facts.version_definitions.iter().flatten();
    let ours = ours.map(|d| (d.name.clone(), d.revision, d.hash, d.flags, d.index));
    c.equal("version definitions", ours.collect(), definitions);
}

fn notes(c: &mut Compared, facts: &Facts, elf: &Elf<'_>, file: &[u8]) {
    let Some(notes) = elf.iter_note_headers(file) else { return };
    let (mut build_id, mut abi, mut dlopen) = (None, None, Vec::new());
    // Where one header of notes covers another both are read; a note that goblin cannot read ends its walk.
    for n in notes.map_while(Result::ok) {
        match (n.name, n.n_type) {
            ("GNU", note::NT_GNU_BUILD_ID) => build_id = Some(n.desc.to_vec()),
            ("GNU", note::NT_GNU_ABI_TAG) if abi.is_none() && n.desc.len() >= 16 => {
                let word = |i: usize| {
                    let bytes: [u8; 4] = n.desc[4 * i..4 * i + 4].try_into().unwrap_or_default();
                    if elf.little_endian { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
                };
                abi = Some((word(0), word(1), word(2), word(3)));
            }
            ("FDO", 0x407c_0c0a) => dlopen.push(trimmed(n.desc)),
            _ => {}
        }
    }
    c.equal("build id", facts.build_id.clone(), build_id);
    c.equal("ABI note", facts.abi_tag, abi);
    c.equal("dlopen notes", facts.dlopen_notes.clone(), dlopen);
}

fn trimmed(text: &[u8]) -> BString {
    BStr::new(text).trim_end_with(|c| c == '\0').into()
}
