//! The dynamic section, and the names in it.

use bstr::{BString, ByteSlice};
use goblin::elf::dynamic::Dyn;
use scroll::Pread;

use super::super::Reader;
use super::super::reader::Text;
use super::strings::{NoText, Strings};
use super::{Facts, Harm, Memory, PAGE, Request, RequestTag};

/// Longest RPATH or RUNPATH that is kept, in bytes.
const MAX_PATH_LIST: u64 = 256 << 10;

/// Most entries of the dynamic array, and of NEEDED, that are read.
const MAX_DYNAMIC: u64 = 64 << 10;

const MAX_REQUESTS: usize = 16 << 10;

const DT_AUXILIARY: u64 = 0x7fff_fffd;

const DT_FILTER: u64 = 0x7fff_ffff;

const DT_RELACOUNT: u64 = 0x6fff_fff9;

const DT_RELCOUNT: u64 = 0x6fff_fffa;

const DT_AUDIT: u64 = 0x6fff_fefc;

const DT_DEPAUDIT: u64 = 0x6fff_fefb;

const DT_RELR: u64 = 36;

const DT_RELRSZ: u64 = 35;

const DT_RELRENT: u64 = 37;

impl Facts {
    pub(super) fn read_dynamic(&mut self, reader: &mut Reader<'_>, address: u64, offset: u64, size: u64) {
        // The loader walks the array at the segment's address, not at p_offset (_dl_map_object_from_fd: l_ld).
        let (offset, limit, zeros_follow) = match self.memory_at(address) {
            Memory::File { offset: at, room } => {
                if at != offset {
                    self.defect(Harm::Odd, "PT_DYNAMIC address and offset disagree; the loader follows the address");
                }
                let zeros = address.checked_add(room).is_some_and(|a| matches!(self.memory_at(a), Memory::Zeros));
                (at, room, zeros)
            }
            // DT_NULL at once.
            Memory::Zeros => return,
            Memory::Nothing => {
                self.defect(Harm::Crash, "PT_DYNAMIC lies outside every loaded segment");
                (offset, size, false)
            }
        };
        let entry = if self.layout.is_64 { 16 } else { 8 };
        let context = self.layout.context();
        let mut entries: Vec<Dyn> = Vec::with_capacity(40);
        let mut at = 0u64;
        let mut ended = false;
        'array: while limit - at >= entry && at / entry < MAX_DYNAMIC {
            // One page at a time, so that the array's length need not be known.
            let Some(from) = offset.checked_add(at) else { break };
            let ask = (PAGE - from % PAGE).max(entry).min(limit - at);
            let Ok(bytes) = reader.range(from, ask) else { break };
            let usable = bytes.len() as u64 / entry * entry;
            if usable == 0 {
                break;
            }
            let mut position = 0usize;
            while (position as u64) < usable {
                let Ok(d) = bytes.pread_with::<Dyn>(position, context) else { break 'array };
                position += entry as usize;
                if d.d_tag == 0 {
                    ended = true;
                    break 'array;
                }
                entries.push(d);
            }
            at += usable;
        }
        let cut = !ended && at / entry >= MAX_DYNAMIC;
        if cut {
            self.defect(Harm::Incomplete, format!("the dynamic array has more than {MAX_DYNAMIC} entries"));
        } else if !(ended || zeros_follow && limit - at < entry) {
            self.defect(Harm::Crash, "the dynamic array has no end mark");
        }
        self.take_entries(reader, &entries, cut);
    }

    fn take_entries(&mut self, reader: &mut Reader<'_>, entries: &[Dyn], cut: bool) {
        use goblin::elf::dynamic as dt;
        let mut soname = None;
        let mut rpath = None;
        let mut runpath = None;
        let mut requests = Vec::new();
        let mut audits = Vec::new();
        let d = &mut self.dynamic;
        // For a tag that may occur once the loader keeps the last one (elf_get_dynamic_info).
        for e in entries {
            let value = e.d_val;
            match e.d_tag {
                dt::DT_NEEDED => requests.push((RequestTag::Needed, value)),
                DT_AUXILIARY => requests.push((RequestTag::Auxiliary, value)),
                DT_FILTER => requests.push((RequestTag::Filter, value)),
                DT_AUDIT | DT_DEPAUDIT => audits.push(value),
                dt::DT_SONAME => soname = Some(value),
                dt::DT_RPATH => rpath = Some(value),
                dt::DT_RUNPATH => runpath = Some(value),
                dt::DT_FLAGS => self.flags = value,
                dt::DT_FLAGS_1 => self.flags_1 = value,
                dt::DT_STRTAB => d.string_table = Some(value),
                dt::DT_STRSZ => d.string_size = Some(value),
                dt::DT_SYMTAB => d.symbol_table = Some(value),
                dt::DT_SYMENT => d.symbol_entry_size = Some(value),
                dt::DT_GNU_HASH => d.gnu_hash = Some(value),
                dt::DT_HASH => d.hash = Some(value),
                dt::DT_VERSYM => d.version_symbols = Some(value),
                dt::DT_VERNEED => d.version_needs = Some(value),
                dt::DT_VERDEF => d.version_definitions = Some(value),
                dt::DT_RELA => d.rela = Some(value),
                dt::DT_RELASZ => d.rela_size = Some(value),
                DT_RELACOUNT => d.rela_count = Some(value),
                DT_RELCOUNT => d.rel_count = Some(value),
                dt::DT_REL => d.rel = Some(value),
                dt::DT_RELSZ => d.rel_size = Some(value),
                dt::DT_JMPREL => d.plt_relocations = Some(value),
                dt::DT_PLTRELSZ => d.plt_relocation_size = Some(value),
                dt::DT_PLTREL => d.plt_relocation_kind = Some(value),
                dt::DT_RELAENT => d.rela_entry_size = Some(value),
                DT_RELRENT => d.relr_entry_size = Some(value),
                dt::DT_PLTGOT => d.plt_table = Some(value),
                dt::DT_INIT => d.init = Some(value),
                dt::DT_INIT_ARRAY => d.init_array = Some(value),
                dt::DT_INIT_ARRAYSZ => d.init_array_size = Some(value),
                DT_RELR => d.relr = Some(value),
                DT_RELRSZ => d.relr_size = Some(value),
                dt::DT_TEXTREL => d.text_relocations = true,
                dt::DT_SYMBOLIC => d.symbolic = true,
                dt::DT_BIND_NOW => d.bind_now = true,
                dt::DT_PREINIT_ARRAY => d.preinit = true,
                _ => {}
            }
        }
        let address = self.dynamic.string_table;
        let uses_strings = soname.is_some() || rpath.is_some() || runpath.is_some() || !requests.is_empty();
        let mut strings = match address {
            Some(address) => Strings::new(address, self.offset_of(address)),
            None => {
                if uses_strings && !cut {
                    self.defect(Harm::Crash, "there is no string table");
                    let tags = requests.iter().take(1).map(|(tag, _)| *tag);
                    self.requests.extend(tags.map(|tag| Request { tag, name: BString::default(), mapped: false }));
                }
                return;
            }
        };
        self.soname = soname.and_then(|at| strings.name(self, reader, at, "DT_SONAME"));
        let lists = [rpath.map(|at| (at, "DT_RPATH")), runpath.map(|at| (at, "DT_RUNPATH"))];
        let [rpath, runpath] = lists.map(|l| l.and_then(|(at, what)| self.path_list(&mut strings, reader, at, what)));
        self.rpath = rpath;
        self.runpath = runpath;
        if requests.len() > MAX_REQUESTS {
            let count = requests.len();
            self.defect(Harm::Incomplete, format!("{count} library requests, only the first {MAX_REQUESTS} are read"));
            requests.truncate(MAX_REQUESTS);
        }
        for (tag, at) in requests {
            let what = match tag {
                RequestTag::Needed => "DT_NEEDED",
                RequestTag::Auxiliary => "DT_AUXILIARY",
                RequestTag::Filter => "DT_FILTER",
            };
            match strings.name_or_reason(self, reader, at, what) {
                Ok(name) => self.requests.push(Request { tag, name, mapped: true }),
                Err(NoText::Unmapped) => self.requests.push(Request { tag, name: BString::default(), mapped: false }),
                Err(NoText::Spent) => {}
            }
        }
        for at in audits.into_iter().take(16) {
            if let Some(name) = strings.name(self, reader, at, "DT_AUDIT") {
                self.audit.push(name);
            }
        }
        if let Some(address) = self.dynamic.version_needs {
            let list = self.read_version_needs(reader, address, &mut strings);
            self.version_needs = Some(list);
        }
        if let Some(address) = self.dynamic.version_definitions {
            let list = self.read_version_definitions(reader, address, &mut strings);
            self.version_definitions = Some(list);
        }
    }

    /// A search list. One that is longer than any list is cut after its last whole element.
    fn path_list(&mut self, strings: &mut Strings, reader: &mut Reader<'_>, at: u64, what: &str) -> Option<BString> {
        match strings.get(self, reader, at, MAX_PATH_LIST) {
            Ok(Text { bytes, whole: true }) => Some(bytes),
            Ok(Text { mut bytes, whole: false }) => {
                self.defect(
                    Harm::Incomplete,
                    format!("{what} is longer than {MAX_PATH_LIST} bytes, the rest is not read"),
                );
                let end = bytes.rfind_byte(b':').unwrap_or(0);
                bytes.truncate(end);
                Some(bytes)
            }
            Err(NoText::Unmapped) => {
                self.defect(Harm::Crash, format!("{what} points outside what is mapped of the file"));
                None
            }
            Err(NoText::Spent) => {
                self.defect(Harm::Incomplete, format!("too many long names; {what} is not read"));
                None
            }
        }
    }
}
