//! Which loader is it? glibc (by release) and musl as data: built-in directories, tokens, and the switches that
//! changed between releases.
//!
//! What can be read from the loader's own file is read from there (rule R0.1): distributions build it differently and
//! patch it. The release number only decides what a file cannot show.

use bstr::{BStr, BString, ByteSlice};

use super::config::musl_arch;
use super::tunables;
use crate::elf::{Facts, Layout, Reader};
use crate::system::{Errno, Host, System, file_name, parent};

/// What must be true of a dynamic array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DynamicCondition {
    /// `DT_PLTREL` is the only kind of relocations that the machine has.
    PltRelocationKind,
    /// `DT_RELAENT` is the size of such a relocation.
    RelaEntrySize,
}

/// Which loader's rules apply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Family {
    /// The GNU C library's ld.so.
    Glibc,
    /// musl's ldso.
    Musl,
}

impl Family {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Family::Glibc => "glibc",
            Family::Musl => "musl",
        }
    }

    /// The first and the last release (major, minor) whose rules are described here.
    pub fn described(self) -> [(u16, u16); 2] {
        match self {
            Family::Glibc => [(2, 17), (2, 43)],
            Family::Musl => [(1, 2), (1, 2)],
        }
    }

    /// True when a release's rules are described.
    pub fn describes(self, (major, minor, _): Version) -> bool {
        let [first, last] = self.described();
        (first..=last).contains(&(major, minor))
    }

    /// The releases that are described, in words: `glibc 2.17 to 2.43`.
    pub fn described_text(self) -> String {
        let [first, last] = self.described().map(|(major, minor)| format!("{major}.{minor}"));
        if first == last { format!("{} {first}", self.name()) } else { format!("{} {first} to {last}", self.name()) }
    }

    /// Its loader for x86-64, as programs name it.
    pub fn interpreter(self) -> &'static str {
        match self {
            Family::Glibc => "/lib64/ld-linux-x86-64.so.2",
            Family::Musl => "/lib/ld-musl-x86_64.so.1",
        }
    }
}

/// Release number: major, minor, patch.
pub type Version = (u16, u16, u16);

/// Where a property of the dialect comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Read from the loader's file.
    Read,
    /// Asked for on the command line.
    Given,
    /// Assumed, with the reason.
    Assumed(String),
}

/// One loader.
#[derive(Clone, Debug)]
pub struct Dialect {
    /// glibc or musl.
    pub family: Family,
    /// Release.
    pub version: Version,
    /// Where the release number comes from.
    pub version_evidence: Evidence,
    /// The loader's path, as programs name it in PT_INTERP.
    pub path: BString,
    /// `DT_SONAME` of the loader.
    pub soname: BString,
    /// Class and byte order.
    pub layout: Layout,
    /// `e_machine`.
    pub machine: u16,
    /// `e_flags` of the loader's file; 0 when it was not read.
    pub e_flags: u32,
    /// Default directories with a trailing slash, in search order.
    pub system_dirs: Vec<BString>,
    /// What `$LIB` stands for.
    pub lib: BString,
    /// Built-in names below `glibc-hwcaps/`, best first.
    pub hwcaps: Vec<BString>,
    /// musl's own name for its architecture (`LDSO_ARCH`), part of the name of its path file (rule R10.4): as the
    /// loader's file spells it, else as the loader is called. `None` when neither says it, and for glibc.
    pub musl_arch: Option<BString>,
    /// True when an older loader's file has tunables for thread-local storage that newer releases always have.
    pub has_static_tls_tunables: bool,
    /// Where directories, `$LIB`, hwcaps and the name of the architecture come from.
    pub evidence: Evidence,
}

/// `e_machine` values with rules of their own.
pub mod machine {
    /// Intel 80386.
    pub const I386: u16 = 3;
    /// PowerPC 64.
    pub const PPC64: u16 = 21;
    /// IBM S/390.
    pub const S390: u16 = 22;
    /// 32-bit Arm.
    pub const ARM: u16 = 40;
    /// x86-64.
    pub const X86_64: u16 = 62;
    /// 64-bit Arm.
    pub const AARCH64: u16 = 183;
    /// RISC-V.
    pub const RISCV: u16 = 243;
    /// LoongArch.
    pub const LOONGARCH: u16 = 258;

    /// True for the numbers above.
    pub fn is_known(machine: u16) -> bool {
        [I386, PPC64, S390, ARM, X86_64, AARCH64, RISCV, LOONGARCH].contains(&machine)
    }
}

/// Longest loader file that is read, in bytes.
const MAX_LOADER: u64 = 32 << 20;

impl Dialect {
    /// Reads a loader's file. When it cannot be read, the dialect is assumed from the path and the machine, and says so.
    pub fn read(system: &System, path: &BStr, layout: Layout, machine: u16) -> Dialect {
        let mut dialect = Dialect::assumed(path, layout, machine);
        let file =
            match system.open(path).and_then(|f| if f.meta.size > MAX_LOADER { Err(Errno::EFBIG) } else { Ok(f) }) {
                Ok(file) => file,
                Err(errno) => return dialect.unread(path, errno),
            };
        // What is looked for lies in read-only data, a fifth of the file; an unusual one is read whole.
        let mut reader = Reader::new(&file);
        let facts = Facts::read(&mut reader, layout);
        let mut texts = Texts(facts.as_ref().map(|f| read_only_parts(&mut reader, f)).unwrap_or_default());
        let is_there = match dialect.family {
            Family::Glibc => texts.find(system_dirs).is_some(),
            Family::Musl => texts.find(musl_version).is_some(),
        };
        if !is_there {
            match file.read_all(MAX_LOADER) {
                Ok(bytes) => texts = Texts(vec![bytes]),
                Err(errno) => return dialect.unread(path, errno),
            }
        }
        if let Some(facts) = facts {
            dialect.e_flags = facts.header.flags;
            dialect.soname = facts.soname.unwrap_or(dialect.soname);
        }
        match dialect.family {
            Family::Musl => {
                if let Some(version) = texts.find(musl_version) {
                    dialect.version = version;
                    dialect.version_evidence = Evidence::Read;
                }
                // Debian's and Alpine's `ld-musl-ARCH.so.1` and `libc.so` are one file under two names.
                let called = || {
                    let real = system.files.real_path(system.absolute(path).as_bstr()).ok()?;
                    musl_arch(real.as_bstr()).map(|a| a.to_owned())
                };
                let arch = texts.find(|bytes| musl_arch_text(bytes).map(BString::from));
                dialect.musl_arch = arch.or(dialect.musl_arch).or_else(called);
                dialect.evidence = match dialect.musl_arch {
                    Some(_) => Evidence::Read,
                    None => Evidence::Assumed(format!(
                        "neither the name nor the content of {path:?} says which path file it reads"
                    )),
                };
            }
            Family::Glibc => {
                if let Some(dirs) = texts.find(system_dirs) {
                    dialect.lib = lib_token(&texts, &dirs).unwrap_or(dialect.lib);
                    dialect.system_dirs = dirs;
                    dialect.evidence = Evidence::Read;
                }
                let elsewhere = || {
                    let real = system.files.real_path(system.absolute(path).as_bstr());
                    let real = real.unwrap_or_else(|_| path.to_owned());
                    let libc = || {
                        let sibling = crate::system::join(parent(real.as_bstr()), "libc.so.6");
                        system.read_small(sibling.as_bstr(), MAX_LOADER).ok().and_then(|b| banner_version(&b))
                    };
                    name_version(file_name(real.as_bstr())).or_else(libc)
                };
                if let Some(version) = texts.find(banner_version).or_else(elsewhere) {
                    dialect.version = version;
                    dialect.version_evidence = Evidence::Read;
                }
                // The list of tunables lies in what the loader writes to.
                let is_old = dialect.version < (2, 32, 0);
                dialect.has_static_tls_tunables =
                    is_old && file.read_all(MAX_LOADER).is_ok_and(|all| all.contains_str("rtld.optional_static_tls\0"));
                if dialect.version >= (2, 33, 0) {
                    let default = default_hwcaps(machine);
                    let last = default.last().cloned();
                    let read = last.and_then(|last| texts.find(|bytes| hwcaps_list(bytes, last.as_bstr())));
                    dialect.hwcaps = read.unwrap_or(default);
                } else {
                    dialect.hwcaps = Vec::new();
                }
            }
        }
        dialect
    }

    /// The same dialect, with the reason why the loader's file says nothing.
    fn unread(mut self, path: &BStr, errno: Errno) -> Dialect {
        self.evidence = Evidence::Assumed(format!("the loader {path:?} cannot be read: {errno}"));
        self.version_evidence = self.evidence.clone();
        self
    }

    /// A dialect from the path and machine alone: what distributions usually build.
    pub fn assumed(path: &BStr, layout: Layout, machine: u16) -> Dialect {
        let family = if file_name(path).starts_with(b"ld-musl-") || file_name(path) == "libc.so" {
            Family::Musl
        } else {
            Family::Glibc
        };
        let lib64 = layout.is_64 && !matches!(machine, machine::RISCV);
        let lib: BString = if lib64 { "lib64" } else { "lib" }.into();
        let mut first = BString::from("/");
        first.extend_from_slice(&lib);
        first.push(b'/');
        let mut second = BString::from("/usr");
        second.extend_from_slice(&first);
        let reason = Evidence::Assumed("no loader file was read".into());
        let (version, soname) = match family {
            Family::Musl => ((1, 2, 5), file_name(path).to_owned()),
            Family::Glibc => ((2, 36, 0), file_name(path).to_owned()),
        };
        Dialect {
            family,
            version,
            version_evidence: reason.clone(),
            path: path.to_owned(),
            soname,
            layout,
            machine,
            e_flags: 0,
            system_dirs: vec![first, second],
            lib,
            hwcaps: default_hwcaps(machine),
            musl_arch: musl_arch(path).filter(|_| family == Family::Musl).map(|a| a.to_owned()),
            has_static_tls_tunables: false,
            evidence: reason,
        }
    }

    /// The loader that a file without PT_INTERP is meant for, by machine and by the libc it asks for.
    pub fn usual_loader(facts: &Facts) -> BString {
        let musl = facts.needed().any(|n| n.starts_with(b"libc.musl-") || n.as_slice() == b"libc.so");
        Dialect::loader_of_family(facts, if musl { Family::Musl } else { Family::Glibc })
    }

    /// The usual path of a family's loader for the machine of a file.
    pub fn loader_of_family(facts: &Facts, family: Family) -> BString {
        let h = &facts.header;
        let glibc: &str = match (h.machine, facts.layout.is_64, facts.layout.big_endian) {
            (machine::X86_64, true, _) => "/lib64/ld-linux-x86-64.so.2",
            (machine::X86_64, false, _) => "/libx32/ld-linux-x32.so.2",
            (machine::I386, ..) => "/lib/ld-linux.so.2",
            (machine::AARCH64, _, false) => "/lib/ld-linux-aarch64.so.1",
            (machine::AARCH64, _, true) => "/lib/ld-linux-aarch64_be.so.1",
            (machine::ARM, ..) if h.flags & 0x400 != 0 => "/lib/ld-linux-armhf.so.3",
            (machine::ARM, ..) => "/lib/ld-linux.so.3",
            (machine::PPC64, _, false) => "/lib64/ld64.so.2",
            (machine::PPC64, _, true) => "/lib64/ld64.so.1",
            (machine::S390, true, _) => "/lib/ld64.so.1",
            (machine::RISCV, true, _) => "/lib/ld-linux-riscv64-lp64d.so.1",
            (machine::LOONGARCH, ..) => "/lib64/ld-linux-loongarch-lp64d.so.1",
            _ => "/lib/ld.so.1",
        };
        if family == Family::Glibc {
            return glibc.into();
        }
        let arch = match (h.machine, facts.layout.is_64, facts.layout.big_endian) {
            (machine::X86_64, true, _) => "x86_64",
            (machine::X86_64, false, _) => "x32",
            (machine::I386, ..) => "i386",
            (machine::AARCH64, _, false) => "aarch64",
            (machine::AARCH64, _, true) => "aarch64_be",
            (machine::ARM, _, false) if h.flags & 0x400 != 0 => "armhf",
            (machine::ARM, _, false) => "arm",
            (machine::ARM, _, true) if h.flags & 0x400 != 0 => "armebhf",
            (machine::ARM, _, true) => "armeb",
            (machine::PPC64, _, false) => "powerpc64le",
            (machine::PPC64, _, true) => "powerpc64",
            (machine::S390, ..) => "s390x",
            (machine::RISCV, true, _) => "riscv64",
            (machine::RISCV, false, _) => "riscv32",
            (machine::LOONGARCH, ..) => "loongarch64",
            _ => return glibc.into(),
        };
        format!("/lib/ld-musl-{arch}.so.1").into()
    }

    /// Changes the release (`--loader glibc:2.31`); what was read from the file stays unless the release excludes it.
    pub fn with_version(mut self, version: Version) -> Dialect {
        self.version = version;
        self.version_evidence = Evidence::Given;
        if self.family == Family::Glibc {
            if version < (2, 33, 0) {
                self.hwcaps.clear();
            } else if self.hwcaps.is_empty() {
                self.hwcaps = default_hwcaps(self.machine);
            }
        }
        self
    }

    /// `2.36` or `1.2.3`.
    pub fn version_text(&self) -> String {
        let (major, minor, patch) = self.version;
        if patch == 0 && self.family == Family::Glibc {
            format!("{major}.{minor}")
        } else {
            format!("{major}.{minor}.{patch}")
        }
    }

    fn since(&self, minor: u16) -> bool {
        self.version >= (2, minor, 0)
    }

    /// Sub-directories tried in front of each directory itself, each with a trailing slash, best first (rules R3.1 to
    /// R3.4).
    pub fn subdirectories(&self, host: &Host) -> Vec<BString> {
        self.subdirectories_with(host, None, None)
    }

    /// The same under `--glibc-hwcaps-prepend` and `--glibc-hwcaps-mask`.
    pub fn subdirectories_with(&self, host: &Host, prepend: Option<&BStr>, mask: Option<&BStr>) -> Vec<BString> {
        let below = |name: &BString| {
            let mut path = BString::from("glibc-hwcaps/");
            path.extend_from_slice(name);
            path.push(b'/');
            path
        };
        let mut out: Vec<BString> = self.active_hwcaps_with(host, prepend, mask).iter().map(below).collect();
        if self.has_legacy_subdirectories() {
            out.extend(legacy_subdirectories(&self.legacy_names(host)));
        }
        out
    }

    /// The names below `glibc-hwcaps/` that are searched, best first (rule R3.2): prepended ones, then the built-in ones
    /// that the processor can use and the mask, if there is one, lets through.
    pub fn active_hwcaps_with(&self, host: &Host, prepend: Option<&BStr>, mask: Option<&BStr>) -> Vec<BString> {
        if self.family != Family::Glibc || !self.since(33) {
            return Vec::new();
        }
        let names = |list: &BStr| list.split_str(":").filter(|n| !n.is_empty()).map(BString::from).collect::<Vec<_>>();
        let mut out = prepend.map(names).unwrap_or_default();
        let allowed = mask.map(names);
        let level = tunables::cpu(self, host).level;
        for name in &self.hwcaps {
            let usable = match name.strip_prefix(b"x86-64-v") {
                Some([digit]) => digit.wrapping_sub(b'0') <= level,
                // Levels of other machines are not known for the audited processor: none is assumed usable.
                _ => false,
            };
            if usable && allowed.as_ref().is_none_or(|a| a.contains(name)) && !out.contains(name) {
                out.push(name.clone());
            }
        }
        out
    }

    /// True for glibc up to 2.36: `tls`, platform and hwcap sub-directories (rule R3.4).
    pub fn has_legacy_subdirectories(&self) -> bool {
        self.family == Family::Glibc && !self.since(37)
    }

    /// Names of the legacy sub-directories, most significant first: `tls`, the platform, hwcaps high to low.
    /// `LD_HWCAP_MASK` (and the tunable `glibc.cpu.hwcap_mask`) take away hwcaps only. On x86-64 a plain processor's
    /// platform and a hwcap are both called `x86_64`, and the loader has both names (`_dl_important_hwcaps`,
    /// elf/dl-hwcaps.c up to 2.36; seen on 2.31 and 2.36).
    pub fn legacy_names(&self, host: &Host) -> Vec<BString> {
        let mut names: Vec<BString> = vec!["tls".into()];
        let cpu = tunables::cpu(self, host);
        names.extend(cpu.platform);
        let mask = tunables::hwcap_mask(self, host).unwrap_or(u64::MAX);
        match self.machine {
            machine::X86_64 => {
                if cpu.avx512_1 && self.since(26) && mask & 4 != 0 {
                    names.push("avx512_1".into());
                }
                if mask & 2 != 0 {
                    names.push("x86_64".into());
                }
            }
            machine::AARCH64 if self.since(29) && mask & 0x100 != 0 => names.push("atomics".into()),
            _ => {}
        }
        names
    }

    /// Highest-plus-one value of `EI_ABIVERSION` for OS ABI GNU (`LIBC_ABI_MAX`; rule R3.5).
    pub fn gnu_abi_limit(&self) -> u8 {
        match self.machine {
            machine::X86_64 | machine::I386 => 4,
            _ => 3,
        }
    }

    /// glibc up to 2.35 skips files whose ABI note asks for a newer kernel (rule R4.20).
    pub fn checks_kernel_note(&self) -> bool {
        self.family == Family::Glibc && !self.since(36)
    }

    /// glibc up to 2.34 insists on segment alignment (rule R3.6).
    pub fn strict_alignment(&self) -> bool {
        !self.since(35)
    }

    /// Since 2.30 a position-independent executable cannot be loaded as a library (rule R3.6).
    pub fn refuses_pie(&self) -> bool {
        self.since(30)
    }

    /// Newer releases refuse a file with an empty `PT_DYNAMIC` even when there is another one (seen on 2.36, 2.41 and
    /// 2.43; 2.31 passes over the empty one).
    pub fn refuses_empty_dynamic(&self) -> bool {
        self.since(32)
    }

    /// What is said of a library whose last segment begins before its first one ends (seen on 2.36, 2.41 and 2.43;
    /// the older text on 2.31).
    pub fn overlap_text(&self) -> &'static str {
        if self.since(32) {
            "ELF load command address/offset not page-aligned"
        } else {
            "cannot change memory protections"
        }
    }

    /// Since 2.33 the x86 ISA level property is checked (rule R3.11).
    pub fn checks_isa_level(&self) -> bool {
        self.since(33) && matches!(self.machine, machine::X86_64 | machine::I386)
    }

    /// Whether a missing PT_GNU_STACK means an executable stack (rule R6.32).
    pub fn stack_is_executable_by_default(&self) -> bool {
        !matches!(self.machine, machine::AARCH64 | machine::RISCV | machine::LOONGARCH)
    }

    /// Since 2.41 `dlopen` refuses what asks for an executable stack, unless the tunable `glibc.rtld.execstack` is 2
    /// (rule R6.32).
    pub fn refuses_executable_stack_in_dlopen(&self, host: &Host) -> bool {
        self.since(41) && tunables::number(self, host, b"glibc.rtld.execstack") != Some(2)
    }

    /// Tunables set the room for thread-local storage that `dlopen` brings: since 2.32, and in loaders that took them over
    /// (Debian's 2.31; rule R6.31).
    pub fn has_static_tls_tunables(&self) -> bool {
        self.has_static_tls_tunables || self.since(32)
    }

    /// Since 2.41 the area for restartable sequences lies among the thread-local blocks, before in the thread control
    /// block (`_dl_extra_tls_get_size`, sysdeps/unix/sysv/linux/dl-extra_tls.h).
    pub fn keeps_restartable_sequences_behind(&self) -> bool {
        self.since(41)
    }

    /// Up to 2.33 descriptors of thread-local storage in `DT_JMPREL` wait for their first use under lazy binding
    /// (`_dl_tlsdesc_resolve_rela`).
    pub fn resolves_descriptors_late(&self) -> bool {
        !self.since(34)
    }

    /// Since 2.41 the tunable `glibc.rtld.execstack=0` forbids executable stacks altogether (rule R6.32).
    pub fn forbids_executable_stack(&self, host: &Host) -> bool {
        self.since(41) && tunables::number(self, host, b"glibc.rtld.execstack") == Some(0)
    }

    /// Up to 2.38 `ENOTDIR` below a relative directory ends the list; since 2.39 it is skipped (rule R3.5).
    pub fn not_a_directory_ends_list(&self) -> bool {
        !self.since(39)
    }

    /// Since 2.42 the loader run as a program finds the real `$ORIGIN` of its program (rule R1.5).
    pub fn explicit_origin_is_resolved(&self) -> bool {
        self.since(42)
    }

    /// Up to 2.36 legacy entries of ld.so.cache are used (rule R4.5).
    pub fn uses_legacy_cache_entries(&self) -> bool {
        !self.since(37)
    }

    /// Since 2.36 an object with DT_RELR must need GLIBC_ABI_DT_RELR (rule R7.9).
    pub fn demands_relr_marker(&self) -> bool {
        self.since(36)
    }

    /// The line of glibc's dl-version.c in the assertion of rule R7.11.
    pub fn missing_need_assertion_line(&self) -> u32 {
        if self.since(36) { 204 } else { 205 }
    }

    /// Up to 2.31 the list of images is checked at the start and by `dlopen`; later the damage shows at the end (rule R6.3;
    /// run on 2.31 and 2.36, the boundary between them is the source's).
    pub fn checks_list_at_start(&self) -> bool {
        !self.since(32)
    }

    /// Since 2.32 a `dlopen` relocates in the order of the opened object's sorted list, before in that of a sort of the
    /// new objects alone (`dl_open_worker`, elf/dl-open.c; rule R6.5).
    pub fn relocates_by_sorted_list(&self) -> bool {
        self.since(32)
    }

    /// What the loader prints when something stands in front of the program in the list of images (rule R6.3).
    pub fn displaced_program_message(&self) -> String {
        if self.checks_list_at_start() {
            return "Inconsistency detected by ld.so: dl-deps.c: 553: _dl_map_object_deps: Assertion \
                    `map->l_searchlist.r_list[0] == map' failed!"
                .into();
        }
        let line = if self.since(37) { 93 } else { 87 };
        format!(
            "Inconsistency detected by ld.so: dl-fini.c: {line}: _dl_fini: Assertion `ns != LM_ID_BASE || i == nloaded' failed!"
        )
    }

    /// What glibc prints of a dynamic array that does not say what the machine's relocations are like (`condition`), and
    /// the exit status is 127. `of_program` is true for the program that the kernel started, whose array another part of the
    /// loader reads (`elf_get_dynamic_info`, elf/get-dynamic-info.h; seen on 2.31, 2.36, 2.41 and 2.43, the boundary
    /// between the first two is the source's).
    pub fn dynamic_array_message(&self, condition: DynamicCondition, of_program: bool) -> String {
        let (line, text) = match condition {
            DynamicCondition::PltRelocationKind => (115, "info[DT_PLTREL]->d_un.d_val == DT_RELA"),
            DynamicCondition::RelaEntrySize => (123, "info[DT_RELAENT]->d_un.d_val == sizeof (ElfW(Rela))"),
        };
        let line = if self.since(35) { line } else { line + 8 };
        let place = if of_program && self.since(35) { "./" } else { "" };
        format!(
            "Inconsistency detected by ld.so: {place}get-dynamic-info.h: {line}: elf_get_dynamic_info: Assertion `{text}' \
             failed!"
        )
    }

    /// Since 2.34 the C library calls the program's initialisers as its dynamic array names them; before, code in the
    /// program itself does.
    pub fn initialises_program_by_tags(&self) -> bool {
        self.since(34)
    }

    /// Since 2.40 a tunable makes an ordinary start secure (rule R9.7).
    pub fn can_be_told_secure(&self) -> bool {
        self.family == Family::Glibc && self.since(40)
    }

    /// Whether a path element with `$ORIGIN` is kept in normalised form in secure mode: so on 2.41 and 2.43, not on 2.31
    /// and 2.36.
    pub fn normalises_secure_origin(&self) -> bool {
        self.since(41)
    }

    /// Since 2.35 there are two algorithms that order images, and a tunable that chooses (rule R6.6).
    pub fn has_dynamic_sort(&self) -> bool {
        self.since(35)
    }

    /// Since 2.39 the C library is relocated before everything else (rule R6.5).
    pub fn relocates_libc_first(&self) -> bool {
        self.since(39)
    }

    /// Up to 2.40 a definition in a file without versions, which is the very file that the version is wanted from, ends
    /// the process; the line of the assertion in dl-lookup.c (`check_match`; rule R7.5).
    pub fn unversioned_provider_assertion_line(&self) -> Option<u32> {
        match self.since(41) {
            true => None,
            false => Some(if self.since(36) { 107 } else { 111 }),
        }
    }

    /// Whether a definition of the very version wanted is preferred to an earlier base definition in the same file: so
    /// upstream since 2.42, and in the 2.41 that distributions ship (rule R7.5).
    pub fn prefers_exact_version(&self) -> bool {
        self.since(41)
    }

    /// Since 2.35 a copy of protected data is told (`_dl_check_protected_symbol`, elf/dl-protected.h; rule R6.20).
    pub fn warns_of_copied_protected_data(&self) -> bool {
        self.since(35)
    }

    /// Up to 2.38 variables that change binding are honoured in secure mode too (rule R9.1).
    pub fn honours_bind_now_in_secure_mode(&self) -> bool {
        !self.since(39)
    }

    /// musl 1.2.4 and later know the names of large-file functions only as another form of the plain ones; older ones
    /// export them (rule R10.11).
    pub fn has_musl_large_file_names(&self) -> bool {
        self.family == Family::Musl && self.version >= (1, 2, 4)
    }

    /// Soname of the library that the kernel maps into every process, which has no file: glibc's loader answers that name
    /// with it (rule R5.5). musl records no name for it.
    pub fn vdso_name(&self) -> Option<&'static str> {
        (self.family == Family::Glibc).then_some(match self.machine {
            machine::I386 => "linux-gate.so.1",
            machine::PPC64 if self.layout.is_64 => "linux-vdso64.so.1",
            machine::S390 if self.layout.is_64 => "linux-vdso64.so.1",
            _ => "linux-vdso.so.1",
        })
    }

    /// Path of the compiled-in cache.
    pub fn cache_path(&self) -> &'static str {
        "/etc/ld.so.cache"
    }
}

/// All subsets of the names, longest first in the order of `_dl_important_hwcaps`, each with a trailing slash. The
/// empty subset (the directory itself) is left out.
fn legacy_subdirectories(names: &[BString]) -> Vec<BString> {
    let n = names.len().min(8);
    let mut out = Vec::new();
    for bits in (1..(1u32 << n)).rev() {
        let mut path = BString::default();
        for (i, name) in names.iter().take(n).enumerate() {
            if bits >> (n - 1 - i) & 1 != 0 {
                path.extend_from_slice(name);
                path.push(b'/');
            }
        }
        out.push(path);
    }
    out
}

fn default_hwcaps(machine: u16) -> Vec<BString> {
    let text: &str = match machine {
        machine::X86_64 => "x86-64-v4:x86-64-v3:x86-64-v2",
        machine::PPC64 => "power10:power9",
        machine::S390 => "z16:z15:z14:z13",
        _ => return Vec::new(),
    };
    text.split(':').map(BString::from).collect()
}

/// The NUL-terminated strings of a file that match a test, as positions.
fn strings_ending_in_slash(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    memchr::memmem::find_iter(bytes, b"/\0").filter_map(move |end| {
        let floor = end.saturating_sub(4096);
        let start = memchr::memrchr(0, &bytes[floor..end]).map_or(floor, |i| floor + i + 1);
        let text = &bytes[start..=end];
        (text.len() > 1 && text[0] == b'/' && text.iter().all(|b| (0x21..0x7f).contains(b))).then_some((start, text))
    })
}

/// The first run of strings that begin and end with `/`, one right after the other: glibc's `system_dirs`.
fn system_dirs(bytes: &[u8]) -> Option<Vec<BString>> {
    let mut run: Vec<BString> = Vec::new();
    let mut expected = usize::MAX;
    for (start, text) in strings_ending_in_slash(bytes) {
        if start != expected && !run.is_empty() {
            break;
        }
        if text.find(b"lib").is_some() {
            if run.len() > 16 {
                return None;
            }
            run.push(text.into());
            expected = start + text.len() + 1;
        } else if !run.is_empty() {
            break;
        }
    }
    (!run.is_empty() && run.len() <= 16).then_some(run)
}

/// `$LIB` is one of the default directories without the leading `/` or `/usr/`, and stands in the file as a string.
fn lib_token(texts: &Texts, dirs: &[BString]) -> Option<BString> {
    let mut candidates: Vec<BString> = Vec::new();
    for dir in dirs {
        let text = dir.strip_suffix(b"/").unwrap_or(dir);
        let text = text.strip_prefix(b"/usr/").or_else(|| text.strip_prefix(b"/")).unwrap_or(text);
        candidates.push(text.into());
        candidates.push(file_name(text.as_bstr()).to_owned());
    }
    candidates.into_iter().find(|c| {
        let mut needle = vec![0u8];
        needle.extend_from_slice(c);
        needle.push(0);
        !c.is_empty() && texts.find(|bytes| memchr::memmem::find(bytes, &needle)).is_some()
    })
}

/// The built-in list of names below glibc-hwcaps, best first, as the file has it; `last` is the last one of such a list.
fn hwcaps_list(bytes: &[u8], last: &BStr) -> Option<Vec<BString>> {
    let mut needle = last.to_vec();
    needle.push(0);
    for end in memchr::memmem::find_iter(bytes, &needle) {
        let floor = end.saturating_sub(256);
        let start = memchr::memrchr(0, &bytes[floor..end]).map_or(floor, |i| floor + i + 1);
        let text = &bytes[start..end + last.len()];
        if text.contains(&b':') && text.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-' || *b == b':') {
            return Some(text.split_str(":").map(BString::from).collect());
        }
    }
    None
}

/// The release in `... release version 2.36.` (in ld.so since 2.33, in libc.so.6 always).
fn banner_version(bytes: &[u8]) -> Option<Version> {
    let at = memchr::memmem::find(bytes, b"release version ")? + b"release version ".len();
    number_triple(&bytes[at..bytes.len().min(at + 16)])
}

/// The release in a file name such as `ld-2.31.so`.
fn name_version(name: &BStr) -> Option<Version> {
    number_triple(name.strip_prefix(b"ld-")?)
}

fn number_triple(text: &[u8]) -> Option<Version> {
    let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(text.len());
    let mut parts = text[..end].split_str(".").filter(|p| !p.is_empty()).map(|p| p.to_str().ok()?.parse::<u16>().ok());
    let major = parts.next()??;
    let minor = parts.next()??;
    let patch = parts.next().flatten().unwrap_or(0);
    Some((major, minor, patch))
}

/// The release string that musl's libc carries (`__libc_version`): three numbers alone between NULs.
fn musl_version(bytes: &[u8]) -> Option<Version> {
    memchr::memmem::find_iter(bytes, b"\x001.").find_map(|at| {
        let text = &bytes[at + 1..bytes.len().min(at + 17)];
        let end = memchr::memchr(0, text)?;
        let text = &text[..end];
        let dots = text.iter().filter(|b| **b == b'.').count();
        // A distribution may append its own suffix after the numbers.
        (dots == 2 && text[..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count() >= 5)
            .then(|| number_triple(text))
            .flatten()
    })
}

/// The architecture in the name of the path file that musl's loader has compiled in (`%.*s/etc/ld-musl-ARCH.path`).
fn musl_arch_text(bytes: &[u8]) -> Option<&[u8]> {
    const BEFORE: &[u8] = b"/etc/ld-musl-";
    memchr::memmem::find_iter(bytes, BEFORE).find_map(|at| {
        let rest = &bytes[at + BEFORE.len()..];
        let end = rest.iter().take(64).position(|b| !(b.is_ascii_alphanumeric() || b"_-".contains(b)))?;
        (end > 0 && rest[end..].starts_with(b".path\0")).then_some(&rest[..end])
    })
}

/// Parts of a loader's file in which its constants are looked for.
struct Texts(Vec<Vec<u8>>);

impl Texts {
    /// The first thing that a function finds in one of the parts.
    fn find<T>(&self, look: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(|bytes| look(bytes))
    }
}

/// The segments that are mapped for reading alone.
fn read_only_parts(reader: &mut Reader<'_>, facts: &Facts) -> Vec<Vec<u8>> {
    const READ: u32 = 4;
    let parts = facts.segments.iter().filter(|s| s.flags == READ).take(8);
    parts.filter_map(|s| reader.range(s.offset, s.file_size).ok().map(<[u8]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Tree;

    #[test]
    fn legacy_order_is_that_of_glibc_2_36_on_haswell_with_avx512() {
        let names: Vec<BString> = ["tls", "haswell", "avx512_1", "x86_64"].map(BString::from).to_vec();
        let got: Vec<String> = legacy_subdirectories(&names).iter().map(|p| p.to_string()).collect();
        assert_eq!(got.len(), 15);
        assert_eq!(got[0], "tls/haswell/avx512_1/x86_64/");
        assert_eq!(got[1], "tls/haswell/avx512_1/");
        assert_eq!(got[7], "tls/");
        assert_eq!(got[8], "haswell/avx512_1/x86_64/");
        assert_eq!(got[14], "x86_64/");
    }

    #[test]
    fn legacy_order_is_that_of_glibc_2_36_where_the_platform_is_x86_64() {
        // As `LD_DEBUG=libs` shows it, on an EPYC.
        let host = |mask: &str| {
            let mut host = Host::bare();
            if !mask.is_empty() {
                host.env.set("LD_HWCAP_MASK", mask);
            }
            host
        };
        let dialect = Dialect::assumed(
            b"/lib64/ld-linux-x86-64.so.2".as_bstr(),
            Layout { is_64: true, big_endian: false },
            machine::X86_64,
        );
        let dialect = dialect.with_version((2, 36, 0));
        let names = |host: &Host| bstr::join(" ", legacy_subdirectories(&dialect.legacy_names(host)));
        let all = "tls/x86_64/x86_64/ tls/x86_64/ tls/x86_64/ tls/ x86_64/x86_64/ x86_64/ x86_64/";
        assert_eq!(names(&host("")).as_bstr(), all);
        assert_eq!(names(&host("0")).as_bstr(), "tls/x86_64/ tls/ x86_64/");
    }

    #[test]
    fn constants_are_found_in_a_loader_file() {
        let bytes = b"xx\0/etc/ld.so.cache\0ab/\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0\0lib/x86_64-linux-gnu\0\
            x86-64-v4:x86-64-v3:x86-64-v2\0ld.so (Debian GLIBC 2.36-9) stable release version 2.36.\n\0/lib/x/\0";
        let dirs = system_dirs(bytes).expect("dirs");
        assert_eq!(
            dirs,
            ["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/", "/usr/lib/"].map(BString::from)
        );
        assert_eq!(lib_token(&Texts(vec![bytes.to_vec()]), &dirs), Some("lib/x86_64-linux-gnu".into()));
        assert_eq!(hwcaps_list(bytes, "x86-64-v2".into()).map(|l| l.len()), Some(3));
        assert_eq!(banner_version(bytes), Some((2, 36, 0)));
        assert_eq!(name_version("ld-2.31.so".into()), Some((2, 31, 0)));
        assert_eq!(musl_version(b"\0a\x001.2.3\0"), Some((1, 2, 3)));
        assert_eq!(musl_arch_text(b"/etc/ld-musl-\0%.*s/etc/ld-musl-riscv64-sf.path\0"), Some(&b"riscv64-sf"[..]));
        assert_eq!(musl_arch_text(b"/etc/ld-musl-x86_64.pathology\0/etc/ld-musl-.path\0/etc/ld-musl-x"), None);
    }

    #[test]
    fn musls_architecture_is_read_from_the_file_or_the_name_and_never_guessed() {
        let read = |path: &str, files: &[(&str, &[u8])], links: &[(&str, &str)]| {
            let mut tree = Tree::new();
            for (path, content) in files {
                tree.add_file(path, *content).expect("add");
            }
            for (path, target) in links {
                tree.add_link(path, *target).expect("add");
            }
            let system = System::new(Host::bare(), std::sync::Arc::new(tree));
            let dialect = Dialect::read(&system, path.into(), Layout::LITTLE_64, machine::AARCH64);
            (dialect.family, dialect.musl_arch.map(|a| a.to_string()), dialect.evidence)
        };
        let some = |arch: &str| Some(arch.to_owned());
        let spelled: &[u8] = b"\x001.2.3\0%.*s/etc/ld-musl-mipsel-sf.path\0";
        let silent: &[u8] = b"\x001.2.3\0";
        let musl = |arch| (Family::Musl, arch, Evidence::Read);
        assert_eq!(read("/lib/libc.so", &[("/lib/libc.so", spelled)], &[]), musl(some("mipsel-sf")));
        // The file knows better than its name.
        let named = "/lib/ld-musl-aarch64.so.1";
        assert_eq!(read(named, &[(named, spelled)], &[]), musl(some("mipsel-sf")));
        assert_eq!(read(named, &[(named, silent)], &[]), musl(some("aarch64")));
        let (_, arch, evidence) = read(named, &[], &[]);
        assert_eq!((arch, matches!(evidence, Evidence::Assumed(_))), (some("aarch64"), true));
        let link = [("/lib/libc.so", "ld-musl-s390x.so.1")];
        assert_eq!(read("/lib/libc.so", &[("/lib/ld-musl-s390x.so.1", silent)], &link), musl(some("s390x")));
        for files in [&[("/lib/libc.so", silent)][..], &[]] {
            let (family, arch, evidence) = read("/lib/libc.so", files, &[]);
            assert_eq!((family, arch), (Family::Musl, None));
            assert!(matches!(evidence, Evidence::Assumed(_)), "{evidence:?}");
        }
        assert_eq!(read("/lib64/ld-linux-x86-64.so.2", &[], &[]).1, None);
    }
}
