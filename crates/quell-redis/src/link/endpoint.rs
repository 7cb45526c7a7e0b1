//! Endpoint: one server to ask, with its circuit breaker.
//!
//! A cluster has one endpoint for each primary, so a primary that is gone delays only calls on its own
//! keys. A single server is one endpoint, and so is the primary that sentinels watch, whichever it is.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::command::Command;
use crate::breaker::Breaker;

/// For how long a server that took over, or started again, may lack states that its predecessor had, and the
/// limits of which are leased or synced: all leases of before are over then, twice as long as they last.
pub(crate) const QUIET: Duration = Duration::from_secs(1);

/// A server that is not ready is asked again in this time: the longest pause of its breaker, and a search.
const ASKED_AGAIN: Duration = Duration::from_secs(2);

/// A server, or the primary of a group of servers.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `HOST:PORT`, or the name under which sentinels know it.
    pub(crate) name: String,
    pub(crate) breaker: Breaker,
    /// For how long it may lack states after a start: [`QUIET`], but in tests.
    quiet: Duration,
    run: Mutex<Run>,
}

/// Run of a server that answered last.
#[derive(Debug)]
struct Run {
    /// Its `run_id`; `None` if there was none, or it is not known.
    id: Option<String>,
    quiet_until: Option<Instant>,
}

impl Endpoint {
    pub(super) const fn new(name: String, quiet: Duration) -> Self {
        Self {
            name,
            breaker: Breaker::new(),
            quiet,
            run: Mutex::new(Run {
                id: None,
                quiet_until: None,
            }),
        }
    }

    /// The run that answered last.
    pub(super) fn run_id(&self) -> Option<String> {
        self.run.lock().id.clone()
    }

    /// A run of a server answers here from now on. If there was another before, it may have lost its memory.
    pub(super) fn note_run(&self, id: &str, now: Instant) {
        let mut run = self.run.lock();
        match run.id.as_deref() {
            Some(before) if before == id => return,
            Some(_) => {
                run.quiet_until = Some(now + self.quiet);
                tracing::info!(
                    server = %self.name,
                    "the server was started again, or another took over: for {:?}, keys of leased and \
                    synced limits that the server lacks count as used up",
                    self.quiet
                );
            }
            None => {}
        }
        run.id = Some(id.to_owned());
    }

    /// A replica took over from another server.
    pub(super) fn note_promoted(&self, now: Instant) {
        self.run.lock().quiet_until = Some(now + self.quiet);
    }

    /// Notes that the server says that it cannot serve yet: a Cluster's node does for two seconds after its
    /// start, and one that reads its data. What it lacks is asked for only after that.
    pub(super) fn note_not_ready(&self, now: Instant) {
        let mut run = self.run.lock();
        if run.quiet_until.is_some_and(|until| now < until) {
            run.quiet_until = Some(now + ASKED_AGAIN + self.quiet);
        }
    }

    /// Returns true if the server may lack states that it, or the server before it, had.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        let until = self.run.lock().quiet_until;
        until.is_some_and(|until| now < until)
    }

    /// The command as it is sent here now.
    pub(super) fn version_of<'c>(&self, command: &'c Command) -> &'c Command {
        let in_doubt = command.in_doubt();
        let in_doubt = in_doubt.filter(|_| self.is_quiet(Instant::now()));
        in_doubt.unwrap_or(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_quiet_for_a_second_when_another_run_of_it_answers() {
        let endpoint = Endpoint::new("h:1".to_owned(), QUIET);
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        endpoint.note_run("a", begun);
        assert!(!endpoint.is_quiet(begun), "there was none before");
        endpoint.note_run("a", at(10));
        assert!(!endpoint.is_quiet(at(10)), "a new connection");
        endpoint.note_run("b", at(20));
        assert!(endpoint.is_quiet(at(20)) && endpoint.is_quiet(at(1_019)));
        endpoint.note_run("b", at(900));
        assert!(!endpoint.is_quiet(at(1_020)));
        endpoint.note_promoted(at(2_000));
        assert!(endpoint.is_quiet(at(2_999)) && !endpoint.is_quiet(at(3_000)));
    }

    #[test]
    fn a_server_that_is_not_ready_after_its_start_stays_quiet() {
        let endpoint = Endpoint::new("h:1".to_owned(), QUIET);
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        endpoint.note_not_ready(begun);
        assert!(!endpoint.is_quiet(begun), "it lost nothing");
        endpoint.note_run("a", begun);
        endpoint.note_run("b", begun);
        for millis in [0, 900, 2_000] {
            endpoint.note_not_ready(at(millis));
        }
        assert!(endpoint.is_quiet(at(4_999)) && !endpoint.is_quiet(at(5_000)));
        endpoint.note_not_ready(at(5_000));
        assert!(!endpoint.is_quiet(at(5_000)), "it has served meanwhile");
    }
}
