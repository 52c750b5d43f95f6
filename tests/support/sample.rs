//! ELF files written byte by byte, so that every field can be a lie.

#![allow(dead_code)]

use std::sync::Arc;

use bstr::ByteSlice;
use ldaudit::elf::{Facts, Layout, Reader};
use ldaudit::system::{File, FileKey, Kind, Meta};

/// Where the parts of a sample lie (offset and address are the same).
pub const HASH: u64 = 0x400;
pub const SYMBOLS: u64 = 0x480;
pub const DYNAMIC: u64 = 0x600;
pub const STRINGS: u64 = 0x1000;

pub const DT_NEEDED: u64 = 1;
pub const DT_HASH: u64 = 4;
pub const DT_STRTAB: u64 = 5;
pub const DT_SYMTAB: u64 = 6;
pub const DT_SONAME: u64 = 14;
pub const DT_RPATH: u64 = 15;
pub const DT_RUNPATH: u64 = 29;
pub const DT_GNU_HASH: u64 = 0x6fff_fef5;
pub const DT_VERDEF: u64 = 0x6fff_fffc;
pub const DT_VERNEED: u64 = 0x6fff_fffe;
pub const DT_AUXILIARY: u64 = 0x7fff_fffd;

pub const PT_LOAD: u32 = 1;
pub const PT_DYNAMIC: u32 = 2;
pub const PT_INTERP: u32 = 3;
pub const PT_NOTE: u32 = 4;

/// A program header.
#[derive(Clone, Copy)]
pub struct Header {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub align: u64,
}

impl Header {
    pub fn at(kind: u32, offset: u64, size: u64) -> Header {
        // The entry point, 0, lies in what is loaded.
        Header {
            kind,
            flags: if kind == PT_LOAD { 7 } else { 6 },
            offset,
            address: offset,
            file_size: size,
            memory_size: size,
            align: 0x1000,
        }
    }
}

/// A library or program in the making.
#[derive(Clone)]
pub struct Sample {
    pub layout: Layout,
    pub machine: u16,
    pub file_type: u16,
    /// Entries of the dynamic array before those for the tables.
    pub dynamic: Vec<(u64, u64)>,
    /// The string table: begins with a NUL.
    pub strings: Vec<u8>,
    /// Program headers besides the one PT_LOAD and the PT_DYNAMIC.
    pub headers: Vec<Header>,
    /// Bytes of the file; the strings and what `put` adds make it longer.
    pub bytes: Vec<u8>,
    /// Leave out the end mark of the dynamic array.
    pub endless: bool,
}

impl Sample {
    pub fn new(layout: Layout) -> Sample {
        Sample {
            layout,
            machine: if layout.is_64 { 62 } else { 3 },
            file_type: 3,
            dynamic: Vec::new(),
            strings: vec![0],
            headers: Vec::new(),
            bytes: vec![0; STRINGS as usize],
            endless: false,
        }
    }

    pub fn x86_64() -> Sample {
        Sample::new(Layout::LITTLE_64)
    }

    /// Adds a string; gives its index.
    pub fn string(&mut self, text: impl AsRef<[u8]>) -> u64 {
        let at = self.strings.len() as u64;
        self.strings.extend_from_slice(text.as_ref());
        self.strings.push(0);
        at
    }

    pub fn entry(mut self, tag: u64, text: impl AsRef<[u8]>) -> Sample {
        let at = self.string(text);
        self.dynamic.push((tag, at));
        self
    }

    pub fn needed(self, name: impl AsRef<[u8]>) -> Sample {
        self.entry(DT_NEEDED, name)
    }

    pub fn soname(self, name: impl AsRef<[u8]>) -> Sample {
        self.entry(DT_SONAME, name)
    }

    pub fn interpreter(mut self, path: &str) -> Sample {
        let index = self.string(path);
        self.headers.push(Header::at(PT_INTERP, STRINGS + index, path.len() as u64 + 1));
        self
    }

    /// Puts bytes at an offset that lies behind the fixed parts or in unused room between them.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        if self.bytes.len() < offset + bytes.len() {
            self.bytes.resize(offset + bytes.len(), 0);
        }
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub fn word(&self, value: u64, size: usize) -> Vec<u8> {
        let mut bytes = value.to_le_bytes()[..size].to_vec();
        if self.layout.big_endian {
            bytes.reverse();
        }
        bytes
    }

    pub fn words(&self, values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| self.word((*v).into(), 4)).collect()
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.clone();
        let strings = out.strings.clone();
        out.put(STRINGS as usize, &strings);
        let big = out.layout.is_64;
        let long = if big { 8 } else { 4 };
        let header_size = out.layout.header_size();
        let one = out.layout.program_header_size();
        let mut dynamic = out.dynamic.clone();
        dynamic.push((DT_STRTAB, STRINGS));
        dynamic.push((10, out.strings.len() as u64));
        dynamic.push((DT_SYMTAB, SYMBOLS));
        if !dynamic.iter().any(|(tag, _)| matches!(*tag, DT_HASH | DT_GNU_HASH)) {
            dynamic.push((DT_HASH, HASH));
            let hash = out.words(&[1, 1, 0, 0]);
            out.put(HASH as usize, &hash);
        }
        if !out.endless {
            dynamic.push((0, 0));
        }
        let at = if DYNAMIC as usize + dynamic.len() * 2 * long <= STRINGS as usize {
            DYNAMIC as usize
        } else {
            out.bytes.len().next_multiple_of(16)
        };
        for (i, (tag, value)) in dynamic.iter().enumerate() {
            let pair = [out.word(*tag, long), out.word(*value, long)].concat();
            out.put(at + i * 2 * long, &pair);
        }
        let size = out.bytes.len() as u64;
        let mut headers = vec![
            Header::at(PT_LOAD, 0, size),
            Header { align: 8, ..Header::at(PT_DYNAMIC, at as u64, (dynamic.len() * 2 * long) as u64) },
        ];
        headers.extend(out.headers.iter().copied());
        let table = if header_size + headers.len() * one <= HASH as usize {
            header_size
        } else {
            size.next_multiple_of(16) as usize
        };
        let mut h = b"\x7fELF".to_vec();
        h.extend([if big { 2 } else { 1 }, if out.layout.big_endian { 2 } else { 1 }, 1]);
        h.resize(16, 0);
        for (value, width) in [
            (u64::from(out.file_type), 2),
            (u64::from(out.machine), 2),
            (1, 4),
            (0, long),
            (table as u64, long),
            (0, long),
            (0, 4),
            (header_size as u64, 2),
            (one as u64, 2),
            (headers.len() as u64, 2),
            (0, 2),
            (0, 2),
            (0, 2),
        ] {
            h.extend(out.word(value, width));
        }
        out.put(0, &h);
        for (i, p) in headers.iter().enumerate() {
            let fields = if big {
                [
                    out.word(p.kind.into(), 4),
                    out.word(p.flags.into(), 4),
                    out.word(p.offset, 8),
                    out.word(p.address, 8),
                    out.word(p.address, 8),
                    out.word(p.file_size, 8),
                    out.word(p.memory_size, 8),
                    out.word(p.align, 8),
                ]
                .concat()
            } else {
                [p.kind.into(), p.offset, p.address, p.address, p.file_size, p.memory_size, p.flags.into(), p.align]
                    .map(|v: u64| out.word(v, 4))
                    .concat()
            };
            out.put(table + i * one, &fields);
        }
        out.bytes
    }

    pub fn facts(&self) -> Facts {
        facts(self.build(), self.layout)
    }
}

/// A file in memory.
pub fn file(bytes: impl Into<Arc<[u8]>>) -> File {
    let bytes = bytes.into();
    let meta = Meta { key: FileKey { device: 1, inode: 1 }, kind: Kind::File, size: bytes.len() as u64, mode: 0o644 };
    File::from_memory(meta, bytes)
}

/// The facts of some bytes.
pub fn facts(bytes: impl Into<Arc<[u8]>>, layout: Layout) -> Facts {
    let file = file(bytes);
    Facts::read(&mut Reader::new(&file), layout).expect("at least a header")
}

/// The texts of NEEDED.
pub fn needed(facts: &Facts) -> Vec<String> {
    facts.needed().map(|n| n.to_str_lossy().into_owned()).collect()
}

/// A small library that has one of everything.
pub fn made(layout: Layout) -> Sample {
    let mut s = Sample::new(layout)
        .soname("libm1.so")
        .entry(DT_RUNPATH, "$ORIGIN/x:$LIB/y::/lib")
        .entry(DT_RPATH, "/r:$PLATFORM")
        .needed("libneeded.so")
        .needed("/lib/$ORIGIN/x.so")
        .entry(DT_AUXILIARY, "libaux.so");
    let (file, v1, v2) = (s.string("libneeded.so") as u32, s.string("V_1") as u32, s.string("V_2") as u32);
    let needs = s.words(&[0x2_0001, file, 16, 0, 7, 2, v1, 16, 8, 0x2_0000, v2, 0]);
    s.put(0x2000, &needs);
    s.dynamic.push((DT_VERNEED, 0x2000));
    let definitions = s.words(&[0x1_0001, 0x1_0001, 7, 20, 28, v1, 0, 1, 0x1_0002, 8, 20, 0, v2, 0]);
    s.put(0x2100, &definitions);
    s.dynamic.push((DT_VERDEF, 0x2100));
    let name = s.string("dlopen");
    let symbol = if layout.is_64 {
        [s.word(name, 4), vec![0x12, 0, 7, 0]].concat()
    } else {
        [s.word(name, 4), s.word(0, 4), s.word(0, 4), vec![0x12, 0, 0, 7]].concat()
    };
    s.put(SYMBOLS as usize + if layout.is_64 { 24 } else { 16 }, &symbol);
    // One bucket behind a filter of one word that lets every name pass.
    let filter = vec![u32::MAX; if layout.is_64 { 2 } else { 1 }];
    let table = s.words(&[&[1, 1, 1, 0], &filter[..], &[1, object::elf::gnu_hash(b"dlopen") | 1]].concat());
    s.put(0x2200, &table);
    s.dynamic.push((DT_GNU_HASH, 0x2200));
    let note = s.words(&[4, 16, 1, 0x0047_4e55, 0, 3, 2, 0, 4, 16, 5, 0x0047_4e55, 0xc000_8002, 4, 1, 0]);
    s.put(0x2300, &note);
    s.headers.push(Header { align: 4, ..Header::at(PT_NOTE, 0x2300, note.len() as u64) });
    s.put(0x2400, b"\0libliteral.so.1\0");
    s
}
