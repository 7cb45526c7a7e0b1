//! Hang-up: notices that a client ends its side of a connection before it is answered.
//!
//! A closed connection and one of which only the client's side is closed look the same until something is sent.
//! So a client whose call waits, for its turn or for the store, keeps its side open until the answer; one that
//! does not gets nothing to hold (docs/decisions/0440). What is answered at once goes out in any case.
//!
//! Nothing is read: bytes of later requests may lie before the end. A call that waits is rare, so its connection
//! is watched only for as long, by a second descriptor.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Message to a client that has hung up; one that closed only its own side reads it.
pub const GONE: &str = "the connection was closed on the client's side before the answer, so nothing is \
                               held: keep it open until then";

/// Returns true if the client has closed or reset the connection by now.
#[cfg(target_os = "linux")]
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The end of both sides, and a reset, are told unasked.
    matches!(poll(&mut asked, Some(&at_once)), Ok(1..))
}

/// Other systems tell the end of one side only to who reads.
#[cfg(not(target_os = "linux"))]
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::HUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut asked, Some(&at_once)), Ok(1..))
}

/// State of a client, for the calls of its connection.
#[derive(Debug, Default)]
pub struct HangUp {
    has_come: AtomicBool,
    /// Calls that want to know.
    watchers: AtomicUsize,
    comes: Notify,
}

impl HangUp {
    /// Completes when the client hangs up. The task of the connection looks for it meanwhile.
    pub async fn wait(&self) {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        let _watching = Watching(self);
        loop {
            let comes = self.comes.notified();
            if self.has_come.load(Ordering::SeqCst) {
                return;
            }
            comes.await;
        }
    }

    /// Does `call`, unless the client hangs up: then that is dropped.
    pub async fn or_else<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = self.wait() => None,
        }
    }

    /// Returns true if the client has hung up by now. The task of the connection looks once, after this
    /// call has yielded to it.
    pub async fn has_come(&self) -> bool {
        tokio::select! {
            biased;
            () = self.wait() => true,
            () = tokio::task::yield_now() => false,
        }
    }
}

/// A call that wants to know.
struct Watching<'a>(&'a HangUp);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Looks for the end of a connection while one of its calls wants to know, by a second descriptor of the socket, of
/// which only the readiness is used.
#[derive(Debug, Default)]
pub struct HangUpWatch(Option<TcpStream>);

/// Most times the socket may turn ready while it is looked at.
const MAX_ROUNDS: usize = 8;

impl HangUpWatch {
    /// Looks, if a call wants to know; the task is woken when there is something to see.
    pub fn look(&mut self, socket: BorrowedFd<'_>, hang_up: &HangUp, context: &mut Context<'_>) {
        if hang_up.watchers.load(Ordering::SeqCst) == 0 {
            self.0 = None;
            return;
        }
        if !hang_up.has_come.load(Ordering::SeqCst) && self.sees(socket, context) {
            self.0 = None;
            hang_up.has_come.store(true, Ordering::SeqCst);
            hang_up.comes.notify_waiters();
        }
    }

    fn sees(&mut self, socket: BorrowedFd<'_>, context: &mut Context<'_>) -> bool {
        for _ in 0..MAX_ROUNDS {
            if let Some(watched) = &self.0 {
                match watched.poll_read_ready(context) {
                    Poll::Pending => return false,
                    // Nothing is read, so what comes next is told again, be it bytes or the end.
                    Poll::Ready(Ok(())) => {
                        let unread = || Err::<(), _>(ErrorKind::WouldBlock.into());
                        let _ = watched.try_io(Interest::READABLE, unread);
                    }
                    // The runtime stops.
                    Poll::Ready(Err(_)) => return false,
                }
            }
            if has_hung_up(socket) {
                return true;
            }
            if self.0.is_none() {
                // Out of files: the call waits until its turn, or the end of its wait.
                let Ok(watched) = second(socket) else {
                    return false;
                };
                self.0 = Some(watched);
            }
        }
        if cfg!(target_os = "linux") {
            context.waker().wake_by_ref();
        }
        false
    }
}

/// The same socket, of whatever kind it is, under another descriptor.
fn second(socket: BorrowedFd<'_>) -> io::Result<TcpStream> {
    let own = socket.try_clone_to_owned()?;
    TcpStream::from_std(std::net::TcpStream::from(own))
}
