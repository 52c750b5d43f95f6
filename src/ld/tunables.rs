//! `GLIBC_TUNABLES`: `NAME=VALUE` pairs between colons (`parse_tunables`, elf/dl-tunables.c), and what the one called
//! `glibc.cpu.hwcaps` leaves of the processor.

use bstr::{BStr, ByteSlice};

use super::Family;
use super::dialect::Dialect;
use crate::system::{Cpu, Host};

const VARIABLE: &str = "GLIBC_TUNABLES";

/// The text that a tunable is set to: the last pair of that name counts. None in secure mode, where no tunable that this
/// simulation knows is left (rule R9.1), and none under musl.
pub fn text<'a>(dialect: &Dialect, host: &'a Host, name: &[u8]) -> Option<&'a BStr> {
    if host.secure || dialect.family != Family::Glibc || dialect.version < (2, 25, 0) {
        return None;
    }
    let pairs = host.env.get(VARIABLE)?;
    let mut found = None;
    let mut parts = pairs.split_str(":").peekable();
    while let Some(part) = parts.next() {
        let pair = part.split_once_str("=");
        if dialect.version >= (2, 39, 0) {
            // All or nothing: a value with `=` in it, or a last part without one, spoils the whole.
            let is_spoilt = match pair {
                Some((_, value)) => value.contains(&b'='),
                None => parts.peek().is_none(),
            };
            if is_spoilt {
                return None;
            }
        }
        found = pair.filter(|(n, _)| *n == name).map(|(_, value)| value.as_bstr()).or(found);
    }
    found
}

/// The value of a numeric tunable; a text that is no number counts as not set.
pub fn number(dialect: &Dialect, host: &Host, name: &[u8]) -> Option<u64> {
    text(dialect, host, name).and_then(|value| parse_number(value))
}

/// The mask on legacy hwcaps that the environment sets: the tunable, of which LD_HWCAP_MASK is the older name.
pub(crate) fn hwcap_mask(dialect: &Dialect, host: &Host) -> Option<u64> {
    if host.secure {
        return None;
    }
    number(dialect, host, b"glibc.cpu.hwcap_mask")
        .or_else(|| host.env.get("LD_HWCAP_MASK").and_then(|v| parse_number(v)))
}

/// The level that is left without a feature, as `_dl_hwcaps_subdirs_active` counts. Only these names are known to the
/// tunable: `CMPXCHG16B`, `LAHF64_SAHF64`, `SSE3` and `F16C` belong to a level too and cannot be switched off (seen on
/// 2.36, 2.41 and 2.43).
fn level_without(feature: &[u8]) -> Option<u8> {
    Some(match feature {
        b"CX8" | b"CMOV" | b"SSE2" | b"POPCNT" | b"SSSE3" | b"SSE4_1" | b"SSE4_2" => 1,
        b"AVX" | b"AVX2" | b"BMI1" | b"BMI2" | b"FMA" | b"LZCNT" | b"MOVBE" | b"OSXSAVE" => 2,
        b"AVX512F" | b"AVX512BW" | b"AVX512CD" | b"AVX512DQ" | b"AVX512VL" => 3,
        _ => return None,
    })
}

/// The processor as the search sees it: without what `glibc.cpu.hwcaps=-NAME,-NAME` switches off. The check of the level
/// that a library needs, and the cache's, look at the processor itself (seen on 2.36, 2.41 and 2.43).
pub fn cpu(dialect: &Dialect, host: &Host) -> Cpu {
    let mut cpu = host.cpu.clone();
    // The tunable changed its name in 2.29, and until then a feature and its use were switched off apart: the names of
    // the source, `set_hwcaps` in sysdeps/x86/cpu-tunables.c.
    let name: &[u8] = if dialect.version >= (2, 29, 0) { b"glibc.cpu.hwcaps" } else { b"glibc.tune.hwcaps" };
    let Some(list) = (cpu.level > 0).then(|| text(dialect, host, name)).flatten() else { return cpu };
    let has_usable_names = dialect.version < (2, 32, 0);
    for off in list.split_str(",").filter_map(|word| word.strip_prefix(b"-")) {
        let levelled = level_without(off);
        // `init_cpu_features` (sysdeps/x86/cpu-features.c) names the platform after its look at the tunables.
        let spoils_haswell = match off {
            b"AVX2" | b"FMA" => !has_usable_names,
            b"AVX2_Usable" | b"FMA_Usable" => has_usable_names,
            b"BMI1" | b"BMI2" | b"LZCNT" | b"MOVBE" | b"POPCNT" => true,
            _ => false,
        };
        if spoils_haswell && cpu.platform.as_ref().is_some_and(|p| p == "haswell") {
            cpu.platform = Some("x86_64".into());
        }
        cpu.avx512_1 &= !matches!(off, b"AVX512CD" | b"AVX512BW" | b"AVX512DQ" | b"AVX512VL");
        cpu.level = levelled.map_or(cpu.level, |left| cpu.level.min(left));
    }
    cpu
}

fn parse_number(text: &[u8]) -> Option<u64> {
    let text = text.to_str().ok()?.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Layout;
    use crate::ld::dialect::machine;

    fn dialect(minor: u16) -> Dialect {
        let path = "/lib64/ld-linux-x86-64.so.2".into();
        Dialect::assumed(path, Layout::LITTLE_64, machine::X86_64).with_version((2, minor, 0))
    }

    fn host(tunables: &str) -> Host {
        let mut host = Host::bare();
        host.cpu = Cpu { level: 4, avx512_1: true, platform: Some("haswell".into()) };
        host.env.set(VARIABLE, tunables);
        host
    }

    #[test]
    fn levels_left_are_those_that_the_loaders_help_shows() {
        // Seen in `ld.so --help` under each value: the level on 2.36, and on 2.41 and 2.43.
        let cases = [
            ("glibc.cpu.hwcaps=-AVX2", 2, 2),
            ("glibc.cpu.hwcaps=-AVX512F", 3, 3),
            ("glibc.cpu.hwcaps=-AVX512F,-SSE2", 1, 1),
            ("glibc.cpu.hwcaps=-AVX2,AVX2", 2, 2),
            ("glibc.cpu.hwcaps=AVX2", 4, 4),
            ("glibc.cpu.hwcaps=-avx2", 4, 4),
            ("glibc.cpu.hwcaps= -AVX2", 4, 4),
            ("glibc.cpu.hwcaps=--AVX2", 4, 4),
            ("glibc.cpu.hwcaps=-,-AVX2", 2, 2),
            ("glibc.cpu.hwcaps=-AVX2,,-POPCNT", 1, 1),
            ("glibc.cpu.hwcaps=-OSXSAVE", 2, 2),
            ("glibc.cpu.hwcaps=-F16C,-SSE3,-CMPXCHG16B,-LAHF64_SAHF64,-AVX2_Usable", 4, 4),
            ("glibc.tune.hwcaps=-AVX2", 4, 4),
            ("glibc.cpu.hwcaps=-AVX2:glibc.cpu.hwcaps=-AVX512F", 3, 3),
            ("glibc.cpu.hwcaps=-AVX2:glibc.cpu.hwcaps=", 4, 4),
            ("foo:glibc.cpu.hwcaps=-AVX2", 2, 2),
            ("=x:glibc.cpu.hwcaps=-AVX2", 2, 2),
            ("glibc.cpu.hwcaps=-AVX2:foo=1", 2, 2),
            ("glibc.cpu.hwcaps=-AVX2:foo", 2, 4),
            ("glibc.cpu.hwcaps=-AVX2:", 2, 4),
            ("a=b=c:glibc.cpu.hwcaps=-AVX2", 2, 4),
            ("glibc.cpu.hwcaps=-AVX2=4", 4, 4),
        ];
        for (tunables, old, new) in cases {
            let level = |minor| cpu(&dialect(minor), &host(tunables)).level;
            assert_eq!([level(36), level(41), level(43)], [old, new, new], "{tunables}");
        }
        let mut secure = host("glibc.cpu.hwcaps=-AVX2");
        secure.secure = true;
        assert_eq!(cpu(&dialect(36), &secure).level, 4);
    }

    #[test]
    fn platform_and_legacy_names_follow_what_is_switched_off() {
        let left = |minor, tunables| {
            let cpu = cpu(&dialect(minor), &host(tunables));
            (cpu.platform.map(|p| p.to_string()).unwrap_or_default(), cpu.avx512_1)
        };
        assert_eq!(left(36, "glibc.cpu.hwcaps=-AVX2"), ("x86_64".into(), true));
        assert_eq!(left(31, "glibc.cpu.hwcaps=-AVX2"), ("haswell".into(), true));
        assert_eq!(left(31, "glibc.cpu.hwcaps=-AVX2_Usable"), ("x86_64".into(), true));
        assert_eq!(left(28, "glibc.tune.hwcaps=-BMI2,-AVX512BW"), ("x86_64".into(), false));
        assert_eq!(left(28, "glibc.cpu.hwcaps=-BMI2"), ("haswell".into(), true));
    }
}
