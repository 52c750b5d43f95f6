#![no_main]

use std::sync::Arc;

use ldaudit::elf::{Facts, Layout, Reader, literals, symbols};
use ldaudit::ld::{Dialect, OpenRequest, Process, Start, Store};
use ldaudit::system::{File, FileKey, Host, Kind, Meta, System, Tree};

// An ELF file: its facts, texts and symbols, and a process that starts it and opens it.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes: Arc<[u8]> = data.into();
    let meta =
        Meta { key: FileKey { device: 1, inode: 1 }, kind: Kind::File, size: bytes.len() as u64, mode: 0o644 };
    let file = File::from_memory(meta, bytes.clone());
    let own = Layout::of_ident(data);
    for layout in own.into_iter().chain([Layout::LITTLE_64, Layout { is_64: false, big_endian: true }]) {
        let mut reader = Reader::new(&file);
        let Some(facts) = Facts::read(&mut reader, layout) else { continue };
        assert!(facts.cost() < 32 << 20);
        literals::imports_dlopen(&file, &facts);
        literals::containing(&file, &facts, &mut reader, b"lib", 50);
        if let Some(table) = symbols::Table::open(&file, &facts) {
            for name in [&b""[..], b"dlopen", b"malloc"] {
                table.lookup(name);
                table.imports(name);
            }
        }
    }
    let mut tree = Tree::new();
    for path in ["/x", "/lib/libx.so", "/lib64/ld-linux-x86-64.so.2"] {
        tree.add_file(path, bytes.clone()).expect("add");
    }
    let system = System::new(Host::bare(), Arc::new(tree));
    for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"] {
        let dialect = Dialect::read(&system, loader.into(), Layout::LITTLE_64, 62);
        let store = Store::new(system.clone(), Layout::LITTLE_64, loader.contains("musl"));
        let host = Arc::new(system.host.clone());
        let mut process = Process::new(Arc::new(store), Arc::new(dialect), host, None);
        process.exec("/x".into(), "/x".into(), Start::Loader);
        process.dlopen(&OpenRequest::new("/lib/libx.so"));
        process.dlopen(&OpenRequest::new("libx.so"));
    }
});
