//! Giving way: work that nobody waits for, on a thread that lets those that answer go first.
//!
//! Reading ten thousand rules takes a core for a tenth of a second. Where all cores are busy, the
//! kernel shares them out evenly, and somebody's answer waits for a slice of time. On Linux a thread
//! can be *nicer* than the others of its process: it gets about a tenth of a core that others want,
//! and all of one that nobody wants. Elsewhere niceness belongs to whole processes, and nothing is
//! done about it.
//!
//! Such a thread holds no lock that answers need, or they would wait for it at its own pace.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// Does work on a thread that gives way, and waits for it.
pub(super) fn giving_way<T: Send>(work: impl Fn() -> T + Sync) -> T {
    scope(|scope| {
        let thread = Builder::new()
            .name("quell-reload".into())
            .spawn_scoped(scope, || {
                be_nice();
                work()
            });
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => resume_unwind(panic),
            // The system has no thread to spare: then it is done here.
            Err(_) => work(),
        }
    })
}

#[cfg(target_os = "linux")]
fn be_nice() {
    /// A weight of about a tenth of the usual one.
    const NICENESS: i32 = 10;
    // No process named: this thread. Where that is forbidden, it goes on as it is.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

#[cfg(not(target_os = "linux"))]
const fn be_nice() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn only_the_thread_that_works_is_nice() {
        let before = getpriority_process(None).unwrap();
        let inside = giving_way(|| getpriority_process(None).unwrap());
        assert_eq!(inside, (10_i32).max(before));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
