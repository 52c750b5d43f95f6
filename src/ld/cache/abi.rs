//! For which machine and processor is an entry? Flags of loaders and libraries, ISA levels, legacy capabilities.

use bstr::BStr;

/// Type of library in the low byte of the flags (`sysdeps/generic/ldconfig.h`): every glibc library.
const LIBC6: i32 = 3;

/// Whether plain `char` is signed in the C ABI of a machine (`e_machine`): decides the order of names with bytes above
/// 0x7f.
pub fn signed_char(machine: u16) -> bool {
    !matches!(machine, machine::ARM | machine::AARCH64 | machine::PPC | machine::PPC64 | machine::S390 | machine::RISCV)
}

/// `e_machine` of the machines whose caches have something of their own.
pub mod machine {
    /// EM_SPARC.
    pub const SPARC: u16 = 2;
    /// EM_386.
    pub const I386: u16 = 3;
    /// EM_68K.
    pub const M68K: u16 = 4;
    /// EM_MIPS.
    pub const MIPS: u16 = 8;
    /// EM_SPARC32PLUS.
    pub const SPARC32PLUS: u16 = 18;
    /// EM_PPC.
    pub const PPC: u16 = 20;
    /// EM_PPC64.
    pub const PPC64: u16 = 21;
    /// EM_S390.
    pub const S390: u16 = 22;
    /// EM_ARM.
    pub const ARM: u16 = 40;
    /// EM_SPARCV9.
    pub const SPARCV9: u16 = 43;
    /// EM_IA_64.
    pub const IA_64: u16 = 50;
    /// EM_X86_64.
    pub const X86_64: u16 = 62;
    /// EM_AARCH64.
    pub const AARCH64: u16 = 183;
    /// EM_RISCV.
    pub const RISCV: u16 = 243;
    /// EM_LOONGARCH.
    pub const LOONGARCH: u16 = 258;
}

mod e_flags {
    //! The bits of `e_flags` that matter.
    pub const ARM_FLOAT_SOFT: u32 = 0x200;
    pub const ARM_FLOAT_HARD: u32 = 0x400;
    pub const ARM_EABI: u32 = 0xff00_0000;
    pub const ARM_EABI_5: u32 = 0x0500_0000;
    pub const MIPS_ABI2: u32 = 0x20;
    pub const MIPS_NAN2008: u32 = 0x400;
    pub const RISCV_RVC: u32 = 0x1;
    pub const RISCV_FLOAT: u32 = 0x6;
    pub const RISCV_DOUBLE: u32 = 0x4;
    pub const LOONGARCH_FLOAT: u32 = 0x7;
    pub const LOONGARCH_SOFT: u32 = 0x1;
    pub const LOONGARCH_DOUBLE: u32 = 0x3;
    pub const LOONGARCH_OBJABI_V1: u32 = 0x40;
}

/// What says which machine and ABI an ELF file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abi {
    /// `e_machine`.
    pub machine: u16,
    /// ELFCLASS64.
    pub class64: bool,
    /// `e_flags`.
    pub e_flags: u32,
}

/// The entry flags that a loader takes (rule R4.6; `_DL_CACHE_DEFAULT_ID`, `_dl_cache_check_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags {
    /// The flags of the loader itself: an entry that has them ends the scan over equal names.
    pub own: i32,
    /// The flags that are taken.
    pub taken: [i32; 2],
}

impl Flags {
    fn only(own: i32) -> Flags {
        Flags { own, taken: [own, own] }
    }

    /// The flags that the loader of an ABI takes. For ARM, MIPS, RISC-V and LoongArch `e_flags` are those of the loader
    /// file. A machine that is not listed has the generic 3 and 1 (plain ELF), as i386 has.
    pub fn of_loader(abi: Abi) -> Flags {
        let generic = Flags { own: LIBC6, taken: [LIBC6, 1] };
        match (abi.machine, abi.class64) {
            (machine::X86_64, true) => Flags::only(0x303),
            (machine::X86_64, false) => Flags::only(0x803),
            (machine::AARCH64, true) => Flags::only(0xa03),
            // arm/dl-cache.h redefines the check but not the loader's own value: unmarked libraries serve both ABIs.
            (machine::ARM, false) if abi.e_flags & e_flags::ARM_FLOAT_HARD != 0 => {
                Flags { own: LIBC6, taken: [0x903, LIBC6] }
            }
            (machine::ARM, false) => Flags { own: LIBC6, taken: [0xb03, LIBC6] },
            (machine::PPC64, true) => Flags::only(0x503),
            (machine::S390, true) => Flags::only(0x403),
            (machine::SPARCV9, true) => Flags::only(0x103),
            (machine::IA_64, true) => Flags::only(0x203),
            (machine::RISCV, _) if abi.e_flags & e_flags::RISCV_FLOAT == e_flags::RISCV_DOUBLE => Flags::only(0x1003),
            (machine::RISCV, _) => Flags::only(0xf03),
            (machine::LOONGARCH, _) if abi.e_flags & e_flags::LOONGARCH_FLOAT == e_flags::LOONGARCH_DOUBLE => {
                Flags::only(0x1203)
            }
            (machine::LOONGARCH, _) => Flags::only(0x1103),
            (machine::MIPS, class64) => match (class64, abi.e_flags & e_flags::MIPS_ABI2 != 0, mips_nan2008(abi)) {
                (true, _, false) => Flags::only(0x703),
                (true, _, true) => Flags::only(0xe03),
                (false, true, false) => Flags::only(0x603),
                (false, true, true) => Flags::only(0xd03),
                (false, false, true) => Flags::only(0xc03),
                (false, false, false) => generic,
            },
            _ => generic,
        }
    }

    pub(super) fn take(&self, flags: i32) -> bool {
        self.taken.contains(&flags)
    }
}

fn mips_nan2008(abi: Abi) -> bool {
    abi.e_flags & e_flags::MIPS_NAN2008 != 0
}

/// The flags that ldconfig of a machine writes for a library (`process_elf_file` of the machine's `readelflib.c`), or
/// `None` when it leaves the library out.
///
/// `libc6` matters for machines without flags of their own, such as i386: up to 2.36 ldconfig takes a library for one of
/// libc6 only when it NEEDs `libc.so.6` or `libm.so.6`, or has the PT_INTERP of libc6; later it always does. i386's
/// loader takes both kinds.
pub fn library_flags(ldconfig: u16, library: Abi, libc6: bool) -> Option<i32> {
    let Abi { machine, class64, e_flags } = library;
    let generic = if libc6 { LIBC6 } else { 1 };
    match ldconfig {
        machine::X86_64 | machine::I386 => match (machine, class64) {
            (machine::X86_64, true) => Some(0x303),
            (machine::X86_64, false) => Some(0x803),
            (machine::I386, false) => Some(generic),
            _ => None,
        },
        // Neither looks at e_machine: the class decides.
        machine::AARCH64 | machine::ARM => Some(match class64 {
            true => 0xa03,
            false if e_flags & e_flags::ARM_EABI != e_flags::ARM_EABI_5 => generic,
            false if e_flags & e_flags::ARM_FLOAT_HARD != 0 => 0x903,
            false if e_flags & e_flags::ARM_FLOAT_SOFT != 0 => 0xb03,
            false => LIBC6,
        }),
        machine::RISCV => {
            match (e_flags & e_flags::RISCV_FLOAT, e_flags & !(e_flags::RISCV_FLOAT | e_flags::RISCV_RVC)) {
                (0, 0) => Some(0xf03),
                (e_flags::RISCV_DOUBLE, 0) => Some(0x1003),
                _ => None,
            }
        }
        machine::LOONGARCH => match e_flags & !e_flags::LOONGARCH_OBJABI_V1 {
            e_flags::LOONGARCH_SOFT => Some(0x1103),
            e_flags::LOONGARCH_DOUBLE => Some(0x1203),
            _ => None,
        },
        machine::PPC | machine::PPC64 => Some(if class64 { 0x503 } else { generic }),
        machine::S390 => Some(if class64 { 0x403 } else { generic }),
        machine::SPARC | machine::SPARC32PLUS | machine::SPARCV9 => Some(if class64 { 0x103 } else { generic }),
        machine::IA_64 => class64.then_some(0x203),
        machine::MIPS => match Flags::of_loader(library).own {
            LIBC6 => Some(generic),
            own => Some(own),
        },
        _ => Some(generic),
    }
}

/// The usable bits of `GNU_PROPERTY_X86_ISA_1` of a processor of an x86-64 level (1 to 4), as glibc has them in
/// `isa_1`.
pub fn isa_bits(level: u8) -> u32 {
    (1u32 << u32::from(level.min(31))) - 1
}

/// The ISA level that ldconfig writes for the needed bits of a library: the number of the highest bit
/// (`elf-read-prop.h`, 2.33 and later).
pub fn isa_level(needed: u32) -> u16 {
    needed.checked_ilog2().unwrap_or(0) as u16
}

/// What glibc up to 2.36 compares with the legacy hwcap mask of an entry (rule R4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Legacy {
    /// Hardware capabilities of the processor, already masked by `LD_HWCAP_MASK` or its default.
    pub hwcap: u64,
    /// The bits that stand for a platform name.
    pub platforms: u64,
    /// The bit of the processor's own platform name; `None` when the name has no bit (`x86_64`).
    pub platform: Option<u64>,
    /// Version of the running kernel, `major << 16 | minor << 8 | patch`, lowered by `LD_ASSUME_KERNEL`; `None` turns
    /// the comparison off. Only releases up to 2.35 compare.
    pub kernel: Option<u32>,
}

impl Legacy {
    /// x86-64, glibc 2.26 to 2.36. `mask` is `LD_HWCAP_MASK`, or 6 (`x86_64` and `avx512_1`) when that is not set.
    pub fn x86_64(avx512_1: bool, platform: Option<&BStr>, mask: u64, kernel: Option<u32>) -> Legacy {
        let platform = X86_PLATFORMS.iter().skip(2).find(|(name, _)| platform.is_some_and(|p| p == *name));
        Legacy {
            hwcap: (2 | if avx512_1 { 4 } else { 0 }) & mask,
            platforms: 0xf << 48,
            platform: platform.map(|(_, bit)| 1 << bit),
            kernel,
        }
    }

    /// aarch64, glibc 2.27 to 2.36: `hwcap` is AT_HWCAP, `mask` is `LD_HWCAP_MASK`, or 0x100 (`atomics`) when that is not
    /// set.
    pub fn aarch64(hwcap: u64, mask: u64, kernel: Option<u32>) -> Legacy {
        Legacy { hwcap: hwcap & mask, platforms: 0, platform: None, kernel }
    }
}

/// Platform names of x86 and their bits in the hwcap field (`sysdeps/x86/dl-hwcap.h`, 2.26 to 2.36).
pub(in crate::ld) const X86_PLATFORMS: &[(&str, u32)] =
    &[("i586", 48), ("i686", 49), ("haswell", 50), ("xeon_phi", 51)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_takes_what_its_ldconfig_writes_for_its_own_libraries() {
        let abis = [
            (machine::X86_64, true, 0, 0x303),
            (machine::X86_64, false, 0, 0x803),
            (machine::I386, false, 0, 3),
            (machine::AARCH64, true, 0, 0xa03),
            (machine::ARM, false, 0x0500_0400, 0x903),
            (machine::ARM, false, 0x0500_0200, 0xb03),
            (machine::PPC64, true, 2, 0x503),
            (machine::S390, true, 0, 0x403),
            (machine::RISCV, true, 5, 0x1003),
            (machine::LOONGARCH, true, 0x43, 0x1203),
            (machine::MIPS, true, 0x400, 0xe03),
        ];
        for (machine, class64, e_flags, expected) in abis {
            let abi = Abi { machine, class64, e_flags };
            assert_eq!(library_flags(machine, abi, true), Some(expected), "{abi:?}");
            assert!(Flags::of_loader(abi).take(expected), "{abi:?}");
        }
        let foreign = Abi { machine: machine::AARCH64, class64: true, e_flags: 0 };
        assert_eq!(library_flags(machine::X86_64, foreign, true), None);
        assert!(!Flags::of_loader(foreign).take(0x303));
        let i386 = Flags::of_loader(Abi { machine: machine::I386, class64: false, e_flags: 0 });
        assert!(i386.take(1) && i386.take(3) && !i386.take(0x303));
    }

    #[test]
    fn levels_are_numbers_of_bits() {
        assert_eq!([1, 2, 3, 4].map(isa_bits), [1, 3, 7, 15]);
        assert_eq!([0, 1, 3, 7, 0x8000_0000].map(isa_level), [0, 0, 1, 2, 31]);
    }
}
