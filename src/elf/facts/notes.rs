//! Note segments: ABI tag, build id, properties, names that a program says it opens.

use bstr::ByteSlice;

use super::super::Reader;
use super::{Facts, read_words};

/// The bits of one property of a property note.
fn property(wanted: u32, desc: &[u8], alignment: usize, endian: scroll::Endian) -> u32 {
    let mut at = 0usize;
    while let Some([kind, size]) = read_words::<2>(desc, at, endian) {
        if kind == wanted && size == 4 {
            return read_words::<1>(desc, at + 8, endian).map_or(0, |[bits]| bits);
        }
        let Some(next) = (at + 8).checked_add(size as usize) else { return 0 };
        at = next.next_multiple_of(alignment);
    }
    0
}

const NT_GNU_ABI_TAG: u32 = 1;

const NT_GNU_BUILD_ID: u32 = 3;

const NT_GNU_PROPERTY_TYPE_0: u32 = 5;

const FDO_DLOPEN: u32 = 0x407c_0c0a;

const GNU_PROPERTY_X86_ISA_1_NEEDED: u32 = 0xc000_8002;

const GNU_PROPERTY_1_NEEDED: u32 = 0xb000_8000;

impl Facts {
    pub(super) fn read_notes(
        &mut self,
        reader: &mut Reader<'_>,
        offset: u64,
        size: u64,
        align: u64,
        take_properties: bool,
    ) {
        let Ok(bytes) = reader.range(offset, size) else { return };
        let bytes = bytes.to_vec();
        let alignment = if align == 8 { 8usize } else { 4 };
        let endian = self.layout.context().le;
        let mut at = 0usize;
        while let Some([name_size, desc_size, kind]) = read_words::<3>(&bytes, at, endian) {
            let name_at = at + 12;
            let Some(name_end) = name_at.checked_add(name_size as usize) else { return };
            let desc_at = name_end.next_multiple_of(alignment);
            let Some(desc_end) = desc_at.checked_add(desc_size as usize) else { return };
            let (Some(name), Some(desc)) = (bytes.get(name_at..name_end), bytes.get(desc_at..desc_end)) else { return };
            match (name, kind) {
                (b"GNU\0", NT_GNU_ABI_TAG) if self.abi_tag.is_none() => {
                    self.abi_tag = read_words::<4>(desc, 0, endian).map(|[os, a, b, c]| (os, a, b, c));
                }
                (b"GNU\0", NT_GNU_BUILD_ID) if desc.len() <= 64 => self.build_id = Some(desc.to_vec()),
                // _dl_process_property_note: wrongly aligned property notes are skipped.
                (b"GNU\0", NT_GNU_PROPERTY_TYPE_0)
                    if take_properties && alignment == if self.layout.is_64 { 8 } else { 4 } =>
                {
                    self.isa_needed |= property(GNU_PROPERTY_X86_ISA_1_NEEDED, desc, alignment, endian);
                    self.needs_indirect_access |= property(GNU_PROPERTY_1_NEEDED, desc, alignment, endian) & 1 != 0;
                }
                (b"FDO\0", FDO_DLOPEN) if self.dlopen_notes.len() < 64 => {
                    self.dlopen_notes.push(desc.trim_end_with(|c| c == '\0').into());
                }
                _ => {}
            }
            let next = desc_end.next_multiple_of(alignment);
            if next <= at {
                return;
            }
            at = next;
        }
    }
}
