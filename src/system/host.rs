//! The host data of a [`System`](super::System): plain values, so that a flag, a fixture or another process can supply them.

use bstr::{BStr, BString, ByteSlice};

/// Environment variables in order. The last occurrence of a name is the one that glibc's loader uses
/// (loader rule R2.8), which [`Environment::get`] follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    vars: Vec<(BString, BString)>,
}

impl Environment {
    /// An empty environment.
    pub fn new() -> Environment {
        Environment::default()
    }

    /// The value of a variable; the last one when it occurs twice.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&BStr> {
        let name = name.as_ref();
        self.vars.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_bstr())
    }

    /// Sets a variable, replacing every occurrence.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.unset(name.as_ref());
        self.vars.push((name.as_ref().into(), value.as_ref().into()));
    }

    /// Removes every occurrence of a variable.
    pub fn unset(&mut self, name: impl AsRef<[u8]>) {
        let name = name.as_ref();
        self.vars.retain(|(n, _)| n != name);
    }

    /// Appends without looking for earlier occurrences.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.vars.push((name.as_ref().into(), value.as_ref().into()));
    }

    /// All variables in order.
    pub fn iter(&self) -> impl Iterator<Item = (&BStr, &BStr)> {
        self.vars.iter().map(|(n, v)| (n.as_bstr(), v.as_bstr()))
    }
}

/// What the loader asks of the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// x86-64 micro-architecture level, 1 (baseline) to 4; 0 on other machines. Rule R3.3.
    pub level: u8,
    /// True when glibc up to 2.36 adds the legacy hwcaps name `avx512_1` (Intel with AVX512; rule R3.4).
    pub avx512_1: bool,
    /// What `$PLATFORM` expands to: AT_PLATFORM, or glibc's own override `haswell` / `xeon_phi` on Intel (rule R1.7).
    pub platform: Option<BString>,
}

impl Cpu {
    /// A plain x86-64 processor of a level, of no particular vendor.
    pub fn x86_64(level: u8) -> Cpu {
        Cpu { level, avx512_1: false, platform: Some("x86_64".into()) }
    }

    /// A processor of another machine with its AT_PLATFORM.
    pub fn other(platform: &str) -> Cpu {
        Cpu { level: 0, avx512_1: false, platform: Some(platform.into()) }
    }

    /// The processor this process runs on.
    #[cfg(target_arch = "x86_64")]
    pub fn live() -> Cpu {
        use std::arch::is_x86_feature_detected as has;
        // lahf_lm has no stable detection macro; it is bit 0 of ECX in leaf 0x8000_0001.
        let lahf = {
            use std::arch::x86_64::__cpuid;
            let max = __cpuid(0x8000_0000).eax;
            max >= 0x8000_0001 && __cpuid(0x8000_0001).ecx & 1 != 0
        };
        let vendor = {
            let r = std::arch::x86_64::__cpuid(0);
            let mut v = [0u8; 12];
            v[..4].copy_from_slice(&r.ebx.to_le_bytes());
            v[4..8].copy_from_slice(&r.edx.to_le_bytes());
            v[8..].copy_from_slice(&r.ecx.to_le_bytes());
            v
        };
        let v2 = has!("cmpxchg16b")
            && lahf
            && has!("popcnt")
            && has!("sse3")
            && has!("ssse3")
            && has!("sse4.1")
            && has!("sse4.2");
        let v3 = v2
            && has!("avx")
            && has!("avx2")
            && has!("bmi1")
            && has!("bmi2")
            && has!("f16c")
            && has!("fma")
            && has!("lzcnt")
            && has!("movbe");
        let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        let level = 1 + u8::from(v2) + u8::from(v3) + u8::from(v4);
        let intel = &vendor == b"GenuineIntel";
        let avx512_1 = intel && has!("avx512cd") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let haswell = intel
            && has!("avx2")
            && has!("bmi1")
            && has!("bmi2")
            && has!("lzcnt")
            && has!("movbe")
            && has!("popcnt")
            && has!("fma");
        Cpu { level, avx512_1, platform: Some(if haswell { "haswell" } else { "x86_64" }.into()) }
    }

    /// The processor this process runs on.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn live() -> Cpu {
        Cpu::other(std::env::consts::ARCH)
    }
}

/// Environment, working directory and machine of the audited process.
#[derive(Clone, Debug)]
pub struct Host {
    /// Environment of the audited process.
    pub env: Environment,
    /// Working directory of the audited process, absolute.
    pub cwd: BString,
    /// True for a set-user-ID or otherwise privileged start (AT_SECURE; rules R9).
    pub secure: bool,
    /// Who starts programs; `None` where nobody in particular does, so that no program gains rights by being started.
    pub user: Option<User>,
    /// The processor.
    pub cpu: Cpu,
    /// Page size in bytes.
    pub page_size: u64,
    /// Kernel version, for the ABI note check of glibc up to 2.35 (rule R4.20).
    pub kernel: (u32, u32, u32),
    /// True when /proc is mounted: without it the main program's `$ORIGIN` is unknown (rule R1.5).
    pub proc_mounted: bool,
}

/// The user who starts programs, as the kernel sees him.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// Real user id.
    pub uid: u32,
    /// Real group id.
    pub gid: u32,
    /// True when set-user-ID and set-group-ID bits count for his processes, false under `no_new_privs`.
    pub gains_ids: bool,
}

impl User {
    /// Who runs this process.
    pub fn live() -> User {
        User {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            // Older than the flag: no process has it.
            gains_ids: !rustix::thread::no_new_privs().unwrap_or(false),
        }
    }
}

/// Rights that a program has beyond those of the user who starts it. They make the start secure (AT_SECURE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// Set-user-ID of another user.
    User(u32),
    /// Set-group-ID of another group.
    Group(u32),
    /// File capabilities.
    Capabilities,
}

impl std::fmt::Display for Privilege {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Privilege::User(0) => f.write_str("set-user-ID root"),
            Privilege::User(uid) => write!(f, "set-user-ID, of user {uid}"),
            Privilege::Group(gid) => write!(f, "set-group-ID, of group {gid}"),
            Privilege::Capabilities => f.write_str("given file capabilities"),
        }
    }
}

impl Host {
    /// A host with an empty environment, working directory `/`, and an x86-64-v3 processor: what fixtures start from.
    pub fn bare() -> Host {
        Host {
            env: Environment::new(),
            cwd: "/".into(),
            secure: false,
            user: None,
            cpu: Cpu::x86_64(3),
            page_size: 4096,
            kernel: (6, 1, 0),
            proc_mounted: true,
        }
    }

    /// The host this process runs on, with this process's environment and working directory.
    pub fn live() -> Host {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let mut env = Environment::new();
        for (name, value) in std::env::vars_os() {
            env.push(name.as_bytes(), value.as_bytes());
        }
        let cwd = std::env::current_dir().map_or_else(|_| "/".into(), |d| BString::from(d.into_os_string().into_vec()));
        let uname = sys::system_release();
        Host {
            env,
            cwd,
            secure: false,
            user: Some(User::live()),
            cpu: Cpu::live(),
            page_size: sys::param::page_size() as u64,
            kernel: parse_release(&uname),
            proc_mounted: std::path::Path::new("/proc/self/exe").exists(),
        }
    }
}

/// `6.1.0-18-amd64` → (6, 1, 0). Parts that are not numbers count as 0.
pub fn parse_release(release: &[u8]) -> (u32, u32, u32) {
    let mut numbers =
        release.split(|b| !b.is_ascii_digit()).map(|part| part.to_str().ok().and_then(|s| s.parse().ok()).unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

mod sys {
    //! The few calls needed, in one place.
    pub use ::rustix::param;

    /// The release field of `uname`.
    pub fn system_release() -> Vec<u8> {
        ::rustix::system::uname().release().to_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_two_equal_names_counts() {
        let mut env = Environment::new();
        env.push("A", "1");
        env.push("A", "2");
        assert_eq!(env.get("A"), Some("2".into()));
        env.set("A", "3");
        assert_eq!(env.iter().count(), 1);
        env.unset("A");
        assert_eq!(env.get("A"), None);
    }

    #[test]
    fn kernel_releases_are_read_by_number() {
        assert_eq!(parse_release(b"6.1.0-18-amd64"), (6, 1, 0));
        assert_eq!(parse_release(b"5.15.153.1-microsoft-standard-WSL2"), (5, 15, 153));
        assert_eq!(parse_release(b"odd"), (0, 0, 0));
    }
}
