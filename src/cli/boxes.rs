//! Boxes described in a file instead of lived in: `--fixture FILE`.

use std::path::Path;

use bstr::{BString, ByteSlice};

use super::Error;
use super::args::Args;
use super::audit::{bytes, quoted};
use crate::fixture::{Fixture, Loader, Step};
use crate::render::escape;
use crate::system::System;

/// Longest fixture file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The box of a fixture, and the program that its first step starts.
pub fn read(file: &Path, args: &Args) -> Result<(Option<BString>, System), Error> {
    let path = bytes(file.as_os_str());
    let text = System::live()
        .read_small(path.as_bstr(), MAX_BYTES)
        .map_err(|e| Error::new(format!("cannot read {}: {e}", quoted(&path))))?;
    let fixture = Fixture::parse(&text).map_err(|problems| match problems.first() {
        Some(p) => {
            Error::new(format!("cannot read {}: line {}: {}", quoted(&path), p.line, escape::text(p.text.as_bytes())))
        }
        None => Error::new(format!("cannot read {}: not a fixture", quoted(&path))),
    })?;
    let loader = loader(args, &fixture);
    let system = fixture
        .system(loader)
        .map_err(|p| Error::new(format!("cannot build {}: line {}: {}", quoted(&path), p.line, p.text)))?;
    let program = fixture.runs(loader).into_iter().next().and_then(|run| match &run.steps.first()?.step {
        Step::Exec(exec) => Some(exec.path.clone()),
        Step::Dlopen(_) | Step::Call(_) => None,
    });
    Ok((program, system))
}

/// The loader whose stand-in lies in the box: what `--loader` says, else one that the fixture concerns.
fn loader(args: &Args, fixture: &Fixture) -> Loader {
    let musl = Loader::musl(1, 2, 3);
    let glibc = Loader::glibc(2, 36);
    match args.loader.as_deref() {
        Some(spec) if spec.starts_with("musl") => musl,
        Some(_) => glibc,
        None if fixture.concerns(glibc) || !fixture.concerns(musl) => glibc,
        None => musl,
    }
}
