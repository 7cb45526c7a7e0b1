//! Batches: calls that wait for one connection at the same time share a script call.
//!
//! A decision that is sent alone costs the server about twice as much as in a batch: half of the cost is
//! that of the script call. So while calls are in flight, a new call is queued. When the tasks that are
//! ready now have queued theirs, the whole queue is sent as one script call.
//!
//! ```text
//! no call in flight -------------------> sent at once, alone, polled by its own caller
//! fewer than MAX_IN_FLIGHT in flight --> sent with all that are ready, after one yield; or at once and
//!                                        alone, if recent batches found one call only
//! MAX_IN_FLIGHT in flight -------------> sent with all that came, when the next answer arrives
//! ```
//!
//! Before the server's first answer to a batch, and after any call without an answer, only one call is
//! in flight at a time. A call may have to be sent twice then (no connection yet, script not loaded),
//! and so no later call overtakes it.
//!
//! As a result a single caller waits for nobody, and a distant store has enough calls in flight. A busy
//! store gets larger batches, which are cheaper per call, up to the size that it still answers quickly.
//! Calls that the store could not answer in time are refused (see `flow`).
//!
//! A call that was sent alone is polled by its own caller, who may stop polling. So if it takes longer
//! than a call may take, it no longer counts as in flight.
//!
//! Each call of a batch is decided on its own, in the order of arrival, and has its own error. If a
//! caller gives up before its call is sent, nothing is charged; later, it may have been charged.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::resp::Value;
use futures_util::future::{Either, select};
use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use crate::answer::strange;
use crate::flow::{FlowWindow, MAX_WAIT, Queue};
use crate::link::{Failure, Link};
use crate::opcode::Opcode;
use crate::script::{DECIDE, DECIDE_BATCH, ScriptArgs};
use crate::sync::{self, Mutex};

mod script_args;

use script_args::{CallOutcome, combine, outcome_of};

/// At most so many script calls are in flight; further calls wait for the next answer.
const MAX_IN_FLIGHT: usize = 4;

/// After so many batches of one call in a row, calls are sent at once and alone while fewer than
/// [`MAX_IN_FLIGHT`] are in flight. With two or three callers a batch would find no second call.
const MAX_SINGLES: u8 = 8;

/// Most calls in a batch: a larger one is no cheaper per call, and all its calls wait for the last.
const MAX_BATCH: usize = 64;

/// A batch may always have so many calls, however slow the answers are. Smaller ones would cost the
/// server more per call, just when it is overloaded.
const MIN_BATCH: usize = 16;

/// Most keys in a batch. A call with more than [`u8::MAX`] keys is sent alone.
const MAX_KEYS: usize = 256;

/// Batches the calls on one connection.
#[derive(Debug)]
pub(crate) struct Batcher {
    link: Arc<Link>,
    timeout: Duration,
    /// True if calls that wait at the same time may go together: they may not on a cluster, where a script
    /// sees one slot.
    is_batching: bool,
    state: Mutex<BatchState>,
}

#[derive(Debug)]
struct BatchState {
    waiting: Queue<QueuedCall>,
    /// Number of calls that a batch may have now.
    window: FlowWindow,
    /// Instant of the last answer.
    last_answer: Instant,
    /// Script calls that were sent and not answered.
    in_flight: usize,
    /// Number of them that were sent alone.
    alone: usize,
    /// Number of calls sent alone that were given up.
    given_up: u64,
    /// True while a task is about to send a batch. If not, calls are queued only because
    /// [`BatchState::max_in_flight`] are in flight.
    is_sending: bool,
    /// True if the server answered the last script call, and also a batch before it.
    is_settled: bool,
    /// Batches of one call in a row.
    singles: u8,
}

impl BatchState {
    fn new(timeout: Duration) -> Self {
        Self {
            waiting: Queue::new(timeout * MAX_WAIT),
            window: FlowWindow::new(MIN_BATCH, MAX_BATCH, timeout / 4),
            last_answer: Instant::now(),
            in_flight: 0,
            alone: 0,
            given_up: 0,
            is_sending: false,
            is_settled: false,
            singles: 0,
        }
    }

    /// Returns true if a call that comes now is sent alone. It never overtakes a queued call.
    fn is_sent_alone(&self) -> bool {
        let most = if self.singles < MAX_SINGLES {
            1
        } else {
            self.max_in_flight()
        };
        self.waiting.is_empty() && !self.is_sending && self.in_flight < most
    }

    const fn max_in_flight(&self) -> usize {
        if self.is_settled { MAX_IN_FLIGHT } else { 1 }
    }
}

#[derive(Debug)]
struct QueuedCall {
    args: Arc<ScriptArgs>,
    caller: oneshot::Sender<CallOutcome>,
}

/// A script call in flight. When it is dropped, queued calls may be sent.
struct InFlightCall {
    batcher: Arc<Batcher>,
    began: Instant,
    queued: usize,
    /// True if the batch had as many calls as it may have.
    was_full: bool,
    is_answered: bool,
    /// For a call that was sent alone: [`BatchState::given_up`] at that time.
    alone: Option<u64>,
}

impl InFlightCall {
    fn new(batcher: &Arc<Batcher>, queued: usize, was_full: bool) -> Self {
        Self {
            batcher: Arc::clone(batcher),
            began: Instant::now(),
            queued,
            was_full,
            is_answered: false,
            alone: None,
        }
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let batcher = &self.batcher;
        let now = Instant::now();
        let mut state = batcher.state.lock();
        if self.alone.is_none_or(|given_up| given_up == state.given_up) {
            state.in_flight = state.in_flight.saturating_sub(1);
            let alone = usize::from(self.alone.is_some());
            state.alone = state.alone.saturating_sub(alone);
        }
        let has_settled = state.is_settled || self.queued > 1;
        state.is_settled = self.is_answered && has_settled;
        if self.is_answered {
            state.last_answer = now;
            state.window.note_answer(self.began, now, self.was_full);
            let refused = state.waiting.note_answers(self.queued, now);
            fail_all(refused, &Failure::Overloaded);
        } else if let Some(then) = now.checked_sub(batcher.timeout)
            && then >= state.last_answer
        {
            // The server has answered nothing since these calls were queued.
            let unsent = state.waiting.since(then);
            let reason = format!(
                "no answer within {:?} to the calls before it",
                batcher.timeout
            );
            fail_all(unsent, &Failure::Unreachable(reason));
        }
        batcher.start_sending(state);
    }
}

fn fail_all(queued: Vec<QueuedCall>, failure: &Failure) {
    for call in queued {
        // The caller may be gone.
        let _ = call.caller.send(CallOutcome::Answer(Err(failure.clone())));
    }
}

/// Way of a new call.
enum CallWay {
    /// Its caller sends it, alone.
    Alone(InFlightCall),
    /// The call is queued for a batch. The flag says whether a call that was sent alone is in flight, and
    /// may have been abandoned.
    Queued(oneshot::Receiver<CallOutcome>, bool),
}

/// The task that is about to send a batch. There is one at a time.
struct SendTask {
    batcher: Arc<Batcher>,
    has_sent: bool,
}

impl Drop for SendTask {
    fn drop(&mut self) {
        let mut state = self.batcher.state.lock();
        state.is_sending = false;
        if self.has_sent {
            self.batcher.start_sending(state);
        } else {
            // The runtime is shutting down, so the queued calls are never sent.
            let unsent = state.waiting.take_all();
            drop(state);
            drop(unsent);
        }
    }
}

impl Batcher {
    pub(crate) fn new(link: &Arc<Link>, timeout: Duration, is_batching: bool) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            timeout,
            is_batching: is_batching && !link.is_spread(),
            state: Mutex::new(BatchState::new(timeout)),
        })
    }

    /// Returns true if the queue fills a batch.
    fn is_batch_full(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() >= state.window.size()
    }

    /// Returns true if a call that comes now is refused, because the store could not answer it in time.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waiting.is_full()
    }

    /// Runs the script for rates, in a batch with other acquires and peeks if some wait.
    pub(crate) async fn ask(self: &Arc<Self>, args: &Arc<ScriptArgs>) -> Result<Value, Failure> {
        let head = args.arguments.first().and_then(|head| head.first());
        let is_question = head.is_some_and(|opcode| *opcode <= Opcode::Acquire as u8);
        if !self.is_batching || !is_question {
            return self.alone(args).await;
        }
        let outcome = match self.enqueue(args)? {
            CallWay::Alone(mut in_flight_call) => {
                let answer = self.alone(args).await;
                in_flight_call.is_answered = is_answer(&answer);
                return answer;
            }
            CallWay::Queued(outcome, false) => outcome.await,
            CallWay::Queued(mut outcome, true) => {
                let longest = self.timeout * (MAX_WAIT + 2);
                match select(&mut outcome, pin!(sync::sleep(longest))).await {
                    Either::Left((outcome, _)) => outcome,
                    Either::Right((_, outcome)) => {
                        self.give_up_alone();
                        outcome.await
                    }
                }
            }
        };
        match outcome {
            Ok(CallOutcome::Answer(answer)) => answer,
            Ok(CallOutcome::NotRun) => self.alone(args).await,
            Err(_) => Err(Failure::Unknown(
                "no caller waited for the answer".to_owned(),
            )),
        }
    }

    fn alone<'a>(
        &'a self,
        args: &'a Arc<ScriptArgs>,
    ) -> impl Future<Output = Result<Value, Failure>> + Send + 'a {
        self.link.call(args.key(), args.command(&DECIDE))
    }

    /// Decides whether a call is sent alone, and queues it if not.
    fn enqueue(self: &Arc<Self>, args: &Arc<ScriptArgs>) -> Result<CallWay, Failure> {
        let mut state = self.state.lock();
        if state.is_sent_alone() {
            state.in_flight += 1;
            state.alone += 1;
            let mut in_flight_call = InFlightCall::new(self, 1, false);
            in_flight_call.alone = Some(state.given_up);
            return Ok(CallWay::Alone(in_flight_call));
        }
        let (caller, outcome) = oneshot::channel();
        let args = Arc::clone(args);
        let entered = state
            .waiting
            .push(QueuedCall { args, caller }, Instant::now());
        entered.map_err(|_| Failure::Overloaded)?;
        let is_beside_one_alone = state.alone > 0;
        self.start_sending(state);
        Ok(CallWay::Queued(outcome, is_beside_one_alone))
    }

    /// Stops counting the calls that were sent alone as in flight: their callers may have stopped
    /// polling.
    fn give_up_alone(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.in_flight = state.in_flight.saturating_sub(state.alone);
        state.alone = 0;
        state.given_up += 1;
        self.start_sending(state);
    }

    /// Spawns the task that sends the queue, if the queue may be sent now and there is no such task yet.
    /// Unlocks the state before: a runtime that is shutting down drops the task at once, which locks it.
    fn start_sending(self: &Arc<Self>, mut state: MutexGuard<'_, BatchState>) {
        if state.waiting.is_empty() || state.is_sending {
            return;
        }
        if state.in_flight >= state.max_in_flight() {
            return;
        }
        if !sync::can_spawn() {
            // The last caller was dropped outside of a runtime. The next call will send the queue.
            return;
        }
        state.is_sending = true;
        drop(state);
        let task = SendTask {
            batcher: Arc::clone(self),
            has_sent: false,
        };
        sync::spawn(send_waiting(task));
    }

    /// Takes the next batch from the queue, in the order of arrival, without calls whose callers gave
    /// up.
    fn take_batch(self: &Arc<Self>) -> Option<(Vec<QueuedCall>, InFlightCall)> {
        let mut state = self.state.lock();
        let most = state.window.size();
        let (mut queued, mut keys) = (Vec::new(), 0);
        while let Some(next) = state.waiting.front() {
            let count = next.args.keys.len();
            let is_large = count > usize::from(u8::MAX);
            let has_room = queued.len() < most && keys + count <= MAX_KEYS;
            if next.caller.is_closed() {
                state.waiting.pop();
            } else if queued.is_empty() || (has_room && !is_large) {
                keys += count;
                queued.extend(state.waiting.pop());
            } else {
                break;
            }
        }
        if queued.is_empty() {
            return None;
        }
        state.singles = match queued.len() {
            1 => state.singles.saturating_add(1),
            _ => 0,
        };
        state.in_flight += 1;
        let was_full = queued.len() >= most;
        let in_flight_call = InFlightCall::new(self, queued.len(), was_full);
        Some((queued, in_flight_call))
    }

    async fn run_batch(&self, queued: &[QueuedCall]) -> Result<Vec<Value>, Failure> {
        if let [call] = queued {
            return Ok(vec![self.alone(&call.args).await?]);
        }
        let args = queued.iter().map(|call| &*call.args);
        let args = Arc::new(combine(args));
        let call = args.command(&DECIDE_BATCH);
        match self.link.call(args.key(), call).await? {
            Value::Array(answers) if answers.len() == queued.len() => Ok(answers),
            reply => Err(strange(&reply)),
        }
    }
}

/// Lets the tasks that are ready run once, sends a batch, and hands out the answers. If the queue
/// already fills a batch, it is sent at once: in a busy process the server would be idle meanwhile, or
/// work for others.
async fn send_waiting(mut task: SendTask) {
    let batcher = Arc::clone(&task.batcher);
    if !batcher.is_batch_full() {
        tokio::task::yield_now().await;
    }
    let taken = batcher.take_batch();
    let Some((queued, mut in_flight_call)) = taken else {
        task.has_sent = true;
        return;
    };
    let answer = {
        let mut call = pin!(batcher.run_batch(&queued));
        // If there is a connection, the first poll sends the batch. So a later batch is sent after it.
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        task.has_sent = true;
        drop(task);
        match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => call.await,
        }
    };
    in_flight_call.is_answered = is_answer(&answer);
    match answer {
        Ok(answers) => {
            for (call, answer) in queued.into_iter().zip(answers) {
                // The caller may be gone.
                let _ = call.caller.send(outcome_of(answer));
            }
        }
        Err(failure) => fail_all(queued, &failure),
    }
    // Dropped last: it spawns the task that sends the next batch, and the task that is woken last runs
    // first.
    drop(in_flight_call);
}

/// Returns true if the server answered; an error is an answer.
const fn is_answer<T>(answer: &Result<T, Failure>) -> bool {
    !matches!(
        answer,
        Err(Failure::Unknown(_)
            | Failure::Unreachable(_)
            | Failure::NotReady(_)
            | Failure::Overloaded
            | Failure::NoScript)
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use shuttle::future::block_on;
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::thread;

    use super::*;
    use crate::link::fake::{CALLS, Calls, FakeServer};

    fn batcher(timeout: Duration) -> Arc<Batcher> {
        let link = Arc::new(Link::new(&"redis://localhost".parse().unwrap(), timeout));
        Batcher::new(&link, timeout, true)
    }

    /// Queues a call for each number of keys, and returns what their callers will receive.
    fn wait(batcher: &Arc<Batcher>, keys: &[usize]) -> Vec<oneshot::Receiver<CallOutcome>> {
        let mut state = batcher.state.lock();
        // As if [`MAX_IN_FLIGHT`] were in flight.
        state.in_flight = MAX_IN_FLIGHT;
        let entered = keys.iter().map(|count| {
            let keys = vec![count.to_string().into_bytes(); *count];
            let charges = keys.iter().map(|_| b"c".to_vec());
            let arguments = [vec![1]].into_iter().chain(charges).collect();
            let args = Arc::new(ScriptArgs::new(keys, arguments));
            let (caller, outcome) = oneshot::channel();
            let call = QueuedCall { args, caller };
            assert!(state.waiting.push(call, Instant::now()).is_ok());
            outcome
        });
        entered.collect()
    }

    /// The keys of each call, batch by batch.
    fn taken(batcher: &Arc<Batcher>) -> Vec<Vec<usize>> {
        let taken = std::iter::from_fn(|| batcher.take_batch());
        taken
            .map(|(queued, _)| queued.iter().map(|one| one.args.keys.len()).collect())
            .collect()
    }

    #[test]
    fn no_more_leave_together_than_one_call_may_hold_and_in_their_order() {
        let ours = batcher(Duration::from_secs(1));
        let _told = wait(&ours, &[1; 150]);
        let sizes: Vec<_> = taken(&ours).iter().map(Vec::len).collect();
        assert_eq!(sizes, [64, 64, 22]);
        let _told = wait(&ours, &[100, 100, 57, 1, 200, 56, 300, 256, 2, 255, 1]);
        let expected = vec![
            vec![100, 100],
            vec![57, 1],
            vec![200, 56],
            vec![300],
            vec![256],
            vec![2],
            vec![255, 1],
        ];
        assert_eq!(taken(&ours), expected);
    }

    #[test]
    fn few_callers_leave_by_themselves_and_many_together() {
        let ours = batcher(Duration::from_secs(1));
        assert!(ours.state.lock().is_sent_alone());
        let one_in_flight = |state: &mut BatchState| {
            (state.in_flight, state.is_settled) = (1, true);
            state.is_sent_alone()
        };
        for _ in 0..MAX_SINGLES {
            assert!(!one_in_flight(&mut ours.state.lock()));
            let _told = wait(&ours, &[1]);
            assert_eq!(taken(&ours), [[1]]);
        }
        assert!(one_in_flight(&mut ours.state.lock()));
        {
            let mut state = ours.state.lock();
            state.is_sending = true;
            assert!(!state.is_sent_alone(), "it would overtake what leaves");
            state.is_sending = false;
            state.is_settled = false;
            assert!(!state.is_sent_alone(), "it could fall behind");
            (state.in_flight, state.is_settled) = (MAX_IN_FLIGHT, true);
            assert!(!state.is_sent_alone());
        }
        let _told = wait(&ours, &[1, 1]);
        assert!(!ours.state.lock().is_sent_alone(), "it would overtake them");
        assert_eq!(taken(&ours), [[1, 1]]);
        assert!(!one_in_flight(&mut ours.state.lock()), "there is company");
    }

    /// It drops a task that is spawned on it at once.
    #[test]
    fn a_runtime_that_is_gone_leaves_no_lock_behind() {
        let (say, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let ours = batcher(Duration::from_secs(1));
            let mut outcome = wait(&ours, &[1, 2]);
            ours.state.lock().in_flight = 0;
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let handle = runtime.handle().clone();
            drop(runtime);
            let _entered = handle.enter();
            ours.give_up_alone();
            let is_closed = |told: &mut oneshot::Receiver<_>| {
                matches!(told.try_recv(), Err(oneshot::error::TryRecvError::Closed))
            };
            let are_told = outcome.iter_mut().all(is_closed);
            let _ = say.send(are_told && !ours.state.lock().is_sending);
        });
        assert_eq!(said.recv_timeout(Duration::from_secs(10)), Ok(true));
    }

    #[test]
    fn who_went_away_is_left_out() {
        let ours = batcher(Duration::from_secs(1));
        let mut outcome = wait(&ours, &[1, 2, 3, 4]);
        drop(outcome.remove(2));
        drop(outcome.remove(0));
        assert_eq!(taken(&ours), [[2, 4]]);
        drop(wait(&ours, &[1, 2, 3]));
        assert_eq!(taken(&ours), [[0; 0]; 0]);
        assert!(ours.state.lock().waiting.is_empty());
    }

    /// Makes a call on a key of its own. Caller 0 goes away, and caller 1 is not polled until the others
    /// are done.
    fn ask(ours: &Arc<Batcher>, calls: &Calls, number: usize, others: impl Fn()) {
        let key = u8::try_from(number).unwrap();
        let arguments = vec![vec![Opcode::Acquire as u8], b"c".to_vec()];
        let args = Arc::new(ScriptArgs::new(vec![vec![key]], arguments));
        let mut call = pin!(ours.ask(&args));
        if number < 2 {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
                return hear(calls, number, answer);
            }
            if number == 0 {
                return;
            }
            others();
        }
        hear(calls, number, block_on(call));
    }

    fn hear(calls: &Calls, number: usize, answer: Result<Value, Failure>) {
        match answer {
            Ok(answer) => calls.answered(number, &answer),
            Err(Failure::Unknown(_)) => {}
            Err(_) => calls.was_not_sent(number),
        }
    }

    /// Runs a script on its keys, each of which is the number of a call; it may have been forgotten.
    fn run(calls: &Calls, args: &[Vec<u8>]) -> String {
        if args[0] == b"EVALSHA" && thread_rng().gen_range(0..8) == 0 {
            return "-NOSCRIPT No matching script.\r\n".to_owned();
        }
        let count: usize = std::str::from_utf8(&args[2]).unwrap().parse().unwrap();
        let answers = args[3..3 + count]
            .iter()
            .map(|key| calls.run(usize::from(key[0])));
        let answers: String = answers.collect();
        match count {
            1 => answers,
            _ => format!("*{count}\r\n{answers}"),
        }
    }

    /// Callers come, go away, are not polled and are answered in any order, while connections break and
    /// the runtime ends: no call is forgotten, each call runs once at most, and whoever hears that it
    /// was not sent hears the truth.
    #[test]
    fn every_question_has_one_end() {
        sync::model::check(1_000, || {
            let (server, calls) = (FakeServer::start(), Arc::new(Calls::default()));
            let ours = batcher(Duration::from_secs(thread_rng().gen_range(0..2)));
            {
                let mut state = ours.state.lock();
                state.is_settled = thread_rng().gen_range(0..2) == 0;
                state.singles = thread_rng().gen_range(0..=MAX_SINGLES);
            }
            let done = Arc::new(AtomicUsize::new(0));
            let callers = (0..CALLS).map(|number| {
                let (ours, calls) = (Arc::clone(&ours), Arc::clone(&calls));
                let done = Arc::clone(&done);
                thread::spawn(move || {
                    let others = || {
                        while done.load(Ordering::SeqCst) < CALLS - 1 {
                            thread::yield_now();
                        }
                    };
                    ask(&ours, &calls, number, others);
                    assert!(ours.state.lock().in_flight <= MAX_IN_FLIGHT);
                    done.fetch_add(1, Ordering::SeqCst);
                })
            });
            let callers: Vec<_> = callers.collect();
            let trouble = {
                let server = Arc::clone(&server);
                thread::spawn(move || {
                    server.wait();
                    match thread_rng().gen_range(0..4) {
                        0 => server.end_clients(),
                        1 => server.hang_up(),
                        _ => {}
                    }
                })
            };
            while done.load(Ordering::SeqCst) < CALLS {
                server.answer(|args| run(&calls, args));
            }
            trouble.join().unwrap();
            callers
                .into_iter()
                .for_each(|caller| caller.join().unwrap());
            calls.check();
            sync::model::end_runtime();
            let state = ours.state.lock();
            assert_eq!((state.in_flight, state.alone), (0, 0));
            assert!(state.waiting.is_empty() && !state.is_sending);
        });
    }
}
