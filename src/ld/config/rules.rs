//! What changed between the releases of ldconfig, and what differs between machines.

use bstr::{BStr, BString, ByteSlice, ByteVec};

use super::trimmed;
use crate::ld::cache::{X86_PLATFORMS, machine};
use crate::system;

/// How one release of ldconfig works: what changed between the releases, as data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Machine of the ldconfig program (`e_machine`).
    pub machine: u16,
    /// A suffix `=TYPE` is cut off a directory line (2.36 and earlier; later it is part of the name).
    pub type_suffix: bool,
    /// `hwcap` lines are ignored with a warning (2.32 and later; before, silently as far as loading goes).
    pub hwcap_warning: bool,
    /// Sub-directories of `glibc-hwcaps` are scanned (2.33 and later).
    pub named: bool,
    /// Legacy sub-directories (`tls`, platforms, hardware capabilities) are scanned (2.36 and earlier).
    pub legacy: bool,
    /// The kernel version of the ABI note is written (2.35 and earlier).
    pub os_version: bool,
    /// `ld.so.*` and `ld64.so.*` count as libraries (2.33 and later).
    pub loader_names: bool,
    /// Temporary files of dpkg and RPM are left out (2.39 and later; Debian's 2.41 and 2.43 do).
    pub skip_temporaries: bool,
}

impl Rules {
    /// ldconfig of glibc 2.`minor` on a machine (`e_machine`).
    pub fn glibc(minor: u32, machine: u16) -> Rules {
        Rules {
            machine,
            type_suffix: minor <= 36,
            hwcap_warning: minor >= 32,
            named: minor >= 33,
            legacy: minor <= 36,
            os_version: minor <= 35,
            loader_names: minor >= 33,
            skip_temporaries: minor >= 39,
        }
    }

    /// `_dl_string_hwcap`, `_dl_string_platform` and `tls`: the bit of a legacy name. Names of the machines other than
    /// x86 and aarch64 are not known here, nor are those of x86 before 2.26.
    fn legacy_bit(&self, name: &BStr) -> Option<u32> {
        let x86 = matches!(self.machine, machine::X86_64 | machine::I386);
        let hwcaps: &[&str] = match self.machine {
            machine::X86_64 | machine::I386 => &["sse2", "x86_64", "avx512_1"],
            machine::AARCH64 => &["fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics"],
            _ => &[],
        };
        let platforms = if x86 { X86_PLATFORMS } else { &[] };
        let hwcap = (0..).zip(hwcaps).find(|(_, n)| name == **n).map(|(bit, _)| bit);
        let platform = || platforms.iter().find(|(n, _)| name == *n).map(|(_, bit)| *bit);
        hwcap.or_else(platform).or_else(|| (name == "tls").then_some(63))
    }

    /// `is_hwcap_platform`: the sub-directory is scanned too.
    pub(super) fn is_legacy_name(&self, name: &BStr) -> bool {
        // Of aarch64's capabilities one is important.
        self.legacy
            && self.legacy_bit(name).is_some_and(|bit| self.machine != machine::AARCH64 || bit == 8 || bit == 63)
    }

    /// `path_hwcap`: the sum of the bits of the last components, as far as they are legacy names. Any configured
    /// directory with such a name has it, `/opt/x86_64` for one.
    pub(super) fn legacy_mask(&self, directory: &BStr) -> u64 {
        let mut mask = 0u64;
        if self.legacy {
            let mut rest = directory;
            while let Some(slash) = rest.rfind_byte(b'/') {
                let Some(bit) = self.legacy_bit(rest[slash + 1..].as_bstr()) else { break };
                mask = mask.wrapping_add(1 << bit);
                rest = rest[..slash].as_bstr();
            }
        }
        mask
    }

    /// `_dl_is_dso`, or the test of the same purpose before 2.33 (rule R4.16).
    pub(super) fn is_library_name(&self, name: &BStr) -> bool {
        ((name.starts_with(b"lib") || name.starts_with(b"ld-")) && name.contains_str(".so"))
            || (self.loader_names && (name.starts_with(b"ld.so.") || name.starts_with(b"ld64.so.")))
    }

    /// `skip_dso_based_on_name`: temporary files of prelink, and since 2.39 of RPM and dpkg.
    pub(super) fn is_temporary_name(&self, name: &BStr) -> bool {
        name.ends_with(b".#prelink#")
            || name.get(name.len().wrapping_sub(17)..).is_some_and(|tail| tail.starts_with(b".#prelink#."))
            || (self.skip_temporaries
                && (name.contains(&b';') || name.ends_with(b".dpkg-new") || name.ends_with(b".dpkg-tmp")))
    }

    /// The directories that ldconfig scans after those of its configuration (rule R4.15), from the built-in directories
    /// of the loader, which both programs have compiled in. A distribution with multiarch directories (Debian's family)
    /// scans the loader's own; upstream has two, and adds their namesakes for the machine's other ABIs
    /// (`add_system_dir`).
    pub fn system_directories(&self, loader: &[BString]) -> Vec<BString> {
        let multiarch = loader.iter().any(|d| {
            let last = system::file_name(trimmed(d.as_bstr()));
            last.contains_str("-linux-")
        });
        let mut out = Vec::new();
        for directory in loader {
            let directory = trimmed(directory.as_bstr());
            if multiarch {
                out.push(directory.to_owned());
            } else {
                self.add_system_directory(directory, &mut out);
            }
        }
        out
    }

    fn add_system_directory(&self, directory: &BStr, out: &mut Vec<BString>) {
        let others: &[&str] = match self.machine {
            machine::X86_64 => &["64", "x32"],
            machine::AARCH64 => &["64", "ilp32"],
            machine::MIPS => &["32", "64"],
            machine::I386
            | machine::SPARC
            | machine::SPARC32PLUS
            | machine::SPARCV9
            | machine::PPC
            | machine::PPC64
            | machine::S390 => &["64"],
            machine::RISCV => &["64/lp64d", "64/lp64", "32/ilp32d", "32/ilp32"],
            machine::LOONGARCH => &["64", "64/sf"],
            _ => &[],
        };
        let stem = others.iter().find_map(|other| {
            let stem = directory.strip_suffix(other.as_bytes())?;
            stem.ends_with(b"/lib").then_some(stem.as_bstr())
        });
        let stem = stem.unwrap_or(directory);
        out.push(stem.to_owned());
        if stem.ends_with(b"/lib") {
            out.extend(others.iter().map(|other| {
                let mut path = stem.to_owned();
                path.push_str(other);
                path
            }));
        }
    }
}
