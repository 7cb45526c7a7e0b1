//! Logins: passwords that are checked, two at a time, and those that were right a moment ago.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::token::{TokenDigest, TokenName};
use crate::task;

/// Passwords that are checked at a time. Each takes a processor for some tens of milliseconds, and up to
/// 64 MiB.
const AT_A_TIME: usize = 2;

/// Logins at a time, with those that wait for their turn: a second of checks, or two.
const MOST: usize = 32;

/// Time a password that was right is known without a check, so that a page of ten requests costs one.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The turns of those who log in.
#[derive(Debug)]
pub(super) struct Logins {
    places: Semaphore,
    turns: Arc<Semaphore>,
}

impl Default for Logins {
    fn default() -> Self {
        Self {
            places: Semaphore::new(MOST),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl Logins {
    /// Waits for a turn, and does `work` on a thread that answers no calls. `None` if too many wait. Once
    /// it has begun, the work goes on although nobody waits for it any more, and keeps its turn.
    pub(super) async fn take_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _place = self.places.try_acquire().ok()?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        task::run_blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }
}

/// Passwords that were right a moment ago: at most one of each user.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<TokenName, (TokenDigest, Instant)>>);

impl Remembered {
    /// Notes the digest of a password that was right at `now`.
    pub(super) fn note(&self, name: &TokenName, digest: TokenDigest, now: Instant) {
        self.0.lock().insert(name.clone(), (digest, now));
    }

    /// Returns true if the digest of this password was noted less than a minute ago.
    pub(super) fn knows(&self, name: &TokenName, digest: TokenDigest, now: Instant) -> bool {
        let known = self.0.lock();
        known.get(name).is_some_and(|(known, since)| {
            *known == digest && now.saturating_duration_since(*since) < REMEMBERED
        })
    }

    /// Forgets all of them.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_check_at_a_time_thirty_wait_and_the_rest_is_sent_away() {
        let logins = Arc::new(Logins::default());
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (has_begun, begun) = mpsc::channel();
        let mut doors = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..MOST {
            let (open, door) = mpsc::channel::<()>();
            doors.push(open);
            let (logins, has_begun) = (Arc::clone(&logins), has_begun.clone());
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let work = move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                has_begun.send(()).unwrap();
                // Until its sender is dropped.
                let _ = door.recv();
                running.fetch_sub(1, Ordering::SeqCst);
            };
            tasks.push(tokio::spawn(async move { logins.take_turn(work).await }));
        }
        (0..AT_A_TIME).for_each(|_| begun.recv().unwrap());
        while logins.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(logins.take_turn(|| ()).await, None, "all places are taken");
        // One that gives up while it waits leaves its place; one that has begun keeps its turn.
        tasks.pop().unwrap().abort();
        while logins.places.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        tasks.remove(0).abort();
        while logins.places.available_permits() == 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(logins.turns.available_permits(), 0);
        drop(doors);
        for task in tasks {
            assert_eq!(task.await.unwrap(), Some(()));
        }
        assert_eq!(most.load(Ordering::SeqCst), AT_A_TIME);
        assert_eq!(logins.take_turn(|| 7).await, Some(7));
    }

    #[test]
    fn a_password_is_remembered_for_a_minute_or_until_it_is_forgotten() {
        let remembered = Remembered::default();
        let (ada, now): (TokenName, _) = ("ada".parse().unwrap(), Instant::now());
        let [right, wrong] = [b"right", b"wrong"].map(|text| TokenDigest::new(text));
        assert!(!remembered.knows(&ada, right, now));
        remembered.note(&ada, right, now);
        let second = Duration::from_secs(1);
        assert!(remembered.knows(&ada, right, now + 59 * second));
        assert!(!remembered.knows(&ada, right, now + 60 * second));
        assert!(!remembered.knows(&ada, wrong, now));
        assert!(!remembered.knows(&"eve".parse().unwrap(), right, now));
        remembered.clear();
        assert!(!remembered.knows(&ada, right, now));
    }
}
