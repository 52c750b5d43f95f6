//! Starting programs that were just written. A child that another thread forks at that moment holds the file open for
//! writing until its own exec, and the kernel refuses to run it meanwhile (ETXTBSY).

#![allow(dead_code)] // each test binary uses its own part

use std::io;
use std::thread;
use std::time::Duration;

/// What a start gives, tried again for some seconds as long as the file is busy.
pub fn start<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..500 {
        match start() {
            Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    start()
}
