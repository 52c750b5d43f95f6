//! Forged libraries, and a tree of them with everything that ldconfig's rules speak of.

use std::fs;

use super::loader::{Temp, X86_64};

/// A library of a few hundred bytes with what ldconfig looks at.
#[derive(Default)]
pub struct Forged<'a> {
    pub soname: Option<&'a str>,
    pub bits32: bool,
    pub machine: u16,
    pub isa_needed: Option<u32>,
    pub kernel: Option<[u32; 4]>,
    pub e_type: Option<u16>,
}

impl Forged<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        let wide = !self.bits32;
        let machine = if self.machine == 0 { X86_64 } else { self.machine };
        let word = if wide { 8 } else { 4 };
        let (header, phdr) = if wide { (64usize, 56usize) } else { (52, 32) };
        let strings = format!("\0{}\0", self.soname.unwrap_or_default());
        let mut note: Vec<u8> = Vec::new();
        let put = |note: &mut Vec<u8>, kind: u32, desc: &[u32]| {
            for w in [4, 4 * desc.len() as u32, kind, u32::from_le_bytes(*b"GNU\0")] {
                note.extend(w.to_le_bytes());
            }
            note.extend(desc.iter().flat_map(|w| w.to_le_bytes()));
        };
        if let Some(v) = self.kernel {
            put(&mut note, 1, &v);
        }
        let property = note.len();
        if let Some(needed) = self.isa_needed {
            put(&mut note, 5, &[0xc000_8002, 4, needed, 0][..if wide { 4 } else { 3 }]);
        }
        let count = 5usize;
        let at_note = header + phdr * count;
        let at_strings = at_note + note.len();
        let at_dynamic = (at_strings + strings.len()).next_multiple_of(8);
        let mut dynamic: Vec<(u64, u64)> = vec![(5, at_strings as u64), (10, strings.len() as u64), (6, 0), (11, 24)];
        if self.soname.is_some() {
            dynamic.push((14, 1));
        }
        dynamic.push((0, 0));
        let dynamic_size = dynamic.len() * 2 * word;
        let total = at_dynamic + dynamic_size;
        let mut out = Vec::new();
        let addr = |out: &mut Vec<u8>, v: u64| {
            if wide { out.extend(v.to_le_bytes()) } else { out.extend((v as u32).to_le_bytes()) }
        };
        out.extend(b"\x7fELF");
        out.extend([if wide { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend(self.e_type.unwrap_or(3).to_le_bytes());
        out.extend(machine.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        addr(&mut out, 0);
        addr(&mut out, header as u64);
        addr(&mut out, 0);
        out.extend(0u32.to_le_bytes());
        for half in [header as u16, phdr as u16, count as u16, if wide { 64 } else { 40 }, 0, 0] {
            out.extend(half.to_le_bytes());
        }
        let empty = (0, 0, 0, 0);
        let segments = [
            (1u32, 0, total, 0x1000u64),
            (2, at_dynamic, dynamic_size, 8),
            if note.is_empty() { empty } else { (4, at_note, note.len(), 4) },
            match self.isa_needed {
                None => empty,
                Some(_) => (0x6474_e553, at_note + property, note.len() - property, word as u64),
            },
            empty,
        ];
        for (kind, at, size, align) in segments {
            out.extend(kind.to_le_bytes());
            if wide {
                out.extend(5u32.to_le_bytes());
            }
            for value in [at as u64, at as u64, at as u64, size as u64, size as u64] {
                addr(&mut out, value);
            }
            if !wide {
                out.extend(5u32.to_le_bytes());
            }
            addr(&mut out, align);
        }
        out.extend(note);
        out.extend(strings.as_bytes());
        out.resize(at_dynamic, 0);
        for (tag, value) in dynamic {
            addr(&mut out, tag);
            addr(&mut out, value);
        }
        // ldconfig leaves out what is smaller than the header of an a.out file.
        out.resize(out.len().max(256), 0);
        out
    }
}

/// A tree with everything the rules speak of. Relative paths are left out where ldconfig cannot `chroot`: it refuses them
/// then.
pub fn tree(relative: bool) -> Temp {
    let temp = Temp::new();
    let at = |path: &str| temp.0.join(path.trim_start_matches('/'));
    let file = |path: &str, bytes: &[u8]| {
        fs::create_dir_all(at(path).parent().expect("directory")).expect("directory");
        fs::write(at(path), bytes).expect("file");
    };
    let lib = |path: &str, soname: &str| file(path, &Forged { soname: Some(soname), ..Default::default() }.bytes());
    let link = |path: &str, target: &str| {
        fs::create_dir_all(at(path).parent().expect("directory")).expect("directory");
        std::os::unix::fs::symlink(target, at(path)).expect("link");
    };
    let (pattern, directory) = if relative { ("rel.d", "opt/relative") } else { ("/etc/rel.d", "/opt/relative") };
    let conf = format!(
        "  # a comment\n\n/opt/a # another\n\t/opt/b///  \ninclude /etc/ld.so.conf.d/*.conf {pattern}/?[0-9].conf\t/none*\n\
         hwcap 0 nosegneg\n/opt/alias\n/opt/typed=libc6\n/opt/odd=what\n/opt/missing\n/opt/c\r\n{directory}\n\
         include /etc/loop.conf\n/included\n/opt/last"
    );
    file("/etc/ld.so.conf", conf.as_bytes());
    file("/etc/ld.so.conf.d/b.conf", b"/opt/b\n/opt/two words\n");
    file("/etc/ld.so.conf.d/a.conf", b"/opt/x86_64\n#/opt/no\n");
    file("/etc/ld.so.conf.d/.hidden.conf", b"/opt/hidden\n");
    file("/etc/ld.so.conf.d/z.conf.bak", b"/opt/bak\n");
    file("/etc/rel.d/p1.conf", b"/opt/rel1\n");
    file("/etc/rel.d/px.conf", b"/opt/relx\n");
    file("/etc/loop.conf", b"/opt/loop\ninclude /etc/loop.conf\n/opt/loop2\n");
    for directory in [
        "a",
        "b",
        "c",
        "typed",
        "odd",
        "odd=what",
        "typed=libc6",
        "x86_64",
        "hidden",
        "bak",
        "rel1",
        "relx",
        "loop",
        "loop2",
        "relative",
        "last",
        "two words",
        "no",
    ] {
        lib(&format!("/opt/{directory}/libcommon.so.1"), "libcommon.so.1");
        lib(&format!("/opt/{directory}/lib{directory}.so"), &format!("lib-{directory}.so"));
    }
    link("/opt/alias", "b");
    // Names that count and names that do not.
    for name in [
        "plugin.so",
        "lib1.sox",
        "libnot.s0",
        "ld-x.so.9",
        "ld.so.9",
        "ld64.so.9",
        "libt.so.dpkg-new",
        "libs;x.so",
        "libu.so.dpkg-tmp",
        "libp.so.#prelink#",
        "libp.so.#prelink#.AbCdEf",
    ] {
        lib(&format!("/opt/a/{name}"), &format!("s-{name}"));
    }
    file("/opt/a/libnone.so.3", &Forged::default().bytes());
    // Several files of one soname.
    for version in ["1.2", "1.10", "1.9"] {
        lib(&format!("/opt/a/libmany.so.{version}"), "libmany.so.1");
    }
    link("/opt/a/libmany.so.1", "libmany.so.1.2");
    link("/opt/a/libmany.so", "libmany.so.1.10");
    lib("/opt/b/libdev.so.1.0", "libdev.so.1");
    link("/opt/b/libdev.so", "libdev.so.1.0");
    link("/opt/b/libdev.so.7", "libdev.so.1.0");
    link("/opt/b/libother.so", "libdev.so.1.0");
    link("/opt/b/libstale.so.1", "nowhere");
    link("/opt/b/libdir.so", "/opt/a");
    link("/opt/b/liblinkonly.so.2", "/opt/elsewhere/liblinkonly.so.2.0");
    lib("/opt/elsewhere/liblinkonly.so.2.0", "liblinkonly.so.2");
    // Other kinds of files.
    file("/opt/b/libscript.so", b"/* GNU ld script */ GROUP ( libcommon.so.1 )");
    file("/opt/b/libempty.so", b"");
    file("/opt/b/libtext.so.1", &[b'x'; 300]);
    file(
        "/opt/b/libexec.so.1",
        &Forged { soname: Some("libexec.so.1"), e_type: Some(2), ..Default::default() }.bytes(),
    );
    file(
        "/opt/b/lib32.so.1",
        &Forged { soname: Some("lib32.so.1"), bits32: true, machine: 3, ..Default::default() }.bytes(),
    );
    file("/opt/b/libx32.so.1", &Forged { soname: Some("libx32.so.1"), bits32: true, ..Default::default() }.bytes());
    file("/opt/b/libarm.so.1", &Forged { soname: Some("libarm.so.1"), machine: 183, ..Default::default() }.bytes());
    file(
        "/opt/b/libboth.so.1",
        &Forged { soname: Some("libcommon.so.1"), bits32: true, machine: 3, ..Default::default() }.bytes(),
    );
    for (name, kernel) in [("libk1.so.1", [0, 3, 2, 0]), ("libk2.so.1", [0, 99, 1, 2])] {
        file(
            &format!("/opt/c/{name}"),
            &Forged { soname: Some(name), kernel: Some(kernel), ..Default::default() }.bytes(),
        );
    }
    lib("/opt/c/libnum.so.01", "libnum.so.01");
    lib("/opt/c/libnum.so.2", "libnum.so.2");
    lib("/opt/c/libnum.so.10", "libnum.so.10");
    lib("/opt/c/libNUM.so.10", "libNUM.so.10");
    // Sub-directories.
    for (level, bit) in [("x86-64-v2", 1u32), ("x86-64-v3", 2), ("x86-64-v4", 3), ("zzz", 0)] {
        let needed = (1u32 << (bit + 1)) - 1;
        file(
            &format!("/opt/c/glibc-hwcaps/{level}/libhw.so.1.5"),
            &Forged { soname: Some("libhw.so.1"), isa_needed: Some(needed), ..Default::default() }.bytes(),
        );
        lib(&format!("/opt/a/glibc-hwcaps/{level}/libcommon.so.1"), "libcommon.so.1");
    }
    lib("/opt/c/libhw.so.1", "libhw.so.1");
    lib("/opt/c/glibc-hwcaps/.hidden/libh.so.1", "libh.so.1");
    lib("/opt/c/glibc-hwcaps/co:lon/libh.so.1", "libh.so.1");
    link("/opt/c/glibc-hwcaps/x86-64-v2/anyname", "libhw.so.1.5");
    link("/opt/c/glibc-hwcaps/x86-64-v2/libhw.so.1", "libhw.so.1.5");
    for path in
        ["tls", "haswell", "tls/haswell", "haswell/avx512_1", "x86_64", "sse2", "i686", "nolegacy", "tls/x86_64/x86_64"]
    {
        lib(&format!("/opt/c/{path}/liblegacy.so.1"), "liblegacy.so.1");
    }
    lib("/opt/c/liblegacy.so.1", "liblegacy.so.1");
    link("/opt/a/tls", "/opt/c/tls");
    // The built-in directories.
    lib("/usr/lib/x86_64-linux-gnu/libsys.so.1", "libsys.so.1");
    lib("/usr/lib/x86_64-linux-gnu/libcommon.so.1", "libcommon.so.1");
    lib("/usr/lib/libplain.so.1", "libplain.so.1");
    lib("/usr/lib64/lib64.so.1", "lib64.so.1");
    link("/lib", "usr/lib");
    link("/lib64", "usr/lib64");
    fs::create_dir_all(at("/var/cache/ldconfig")).expect("directory");
    temp
}
