//! Gather: calls that wait for the same connection at the same time go together, as one script call.
//!
//! What a script call costs a server before it does anything is about half of what a decision costs.
//! So a call that comes while others are on their way does not leave by itself: it waits until the
//! tasks that are ready now have said what they want, and all of them leave together.
//!
//! ```text
//! nobody is on the way ------------------> leaves at once, alone, as its caller polls it
//! somebody is, fewer than MOST_ON_THE_WAY > leaves with all that are ready, in the next turn; at once,
//!                                           alone, if such turns found nobody else lately
//! MOST_ON_THE_WAY are --------------------> leaves with all that came until the next answer
//! ```
//!
//! Until the server has answered several at once, and after every call without an answer, one is on the
//! way at a time: what has to be sent twice (there is no connection yet, the server does not know the
//! script) falls behind nobody.
//!
//! So a call that comes alone waits for nobody, a far store has enough calls on the way, and a store
//! that has more to do than it can is given larger and larger pieces, each of which costs it less; but
//! none so large that its answer is slow to come. More than it answers in time do not wait: see `flow`.
//!
//! Who leaves alone is polled by its caller, and perhaps is not any more. Whoever waits for it waits for
//! as long as a call may take, and then as if it were not on the way.
//!
//! Every question is decided on its own, in the order in which they came: what is wrong with one is its
//! own answer. A caller that gives up before its question left leaves nothing behind; one that gives up
//! later may have been charged, as ever.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use redis::Value;
use tokio::sync::oneshot;

use crate::asked::strange;
use crate::flow::{PATIENCE, Queue, Window};
use crate::link::{Failure, Link};
use crate::script::Scripts;
use crate::store::{RedisStore, Request};
use crate::sync::{self, Mutex};

mod words;

pub(crate) use words::Words;
use words::{Told, together, told};

/// Script calls on the way at a time before others wait for the next answer.
const MOST_ON_THE_WAY: usize = 4;

/// So many turns in a row that found one question only, and calls no longer wait for the next turn
/// before [`MOST_ON_THE_WAY`] are on the way: with two or three callers that is all it would find.
const LONELY: u8 = 8;

/// Questions of one script call: from here on more of them save nothing, and all wait for the last.
const MOST_QUESTIONS: usize = 64;

/// Questions of one script call that may go together however slow the answers are: fewer would cost the
/// server more for each, when it has least to spare.
const LEAST_QUESTIONS: usize = 16;

/// Keys of one script call. A question of more than [`u8::MAX`] goes alone.
const MOST_KEYS: usize = 256;

/// Calls on one connection.
#[derive(Debug)]
pub(crate) struct Gather {
    link: Arc<Link>,
    scripts: Arc<Scripts>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    waiting: Queue<Question>,
    /// Questions of one script call.
    window: Window,
    /// When a script call was answered last.
    heard: Instant,
    /// Script calls without an answer.
    on_the_way: usize,
    /// Those of them that left alone.
    alone: usize,
    /// How often those were given up.
    given_up: u64,
    /// Whether a task is about to send what waits. While it is not, nothing waits unless as many as
    /// may be are on the way.
    is_leaving: bool,
    /// Whether the server answered the last script call, and one that asked for several before.
    is_settled: bool,
    /// Turns in a row that found one question only.
    lonely: u8,
}

impl State {
    fn new(timeout: Duration) -> Self {
        Self {
            waiting: Queue::new(timeout * PATIENCE),
            window: Window::new(LEAST_QUESTIONS, MOST_QUESTIONS, timeout / 4),
            heard: Instant::now(),
            on_the_way: 0,
            alone: 0,
            given_up: 0,
            is_leaving: false,
            is_settled: false,
            lonely: 0,
        }
    }

    /// Whether a question that comes now leaves by itself. It overtakes nobody.
    fn leaves_alone(&self) -> bool {
        let most = if self.lonely < LONELY {
            1
        } else {
            self.most_on_the_way()
        };
        self.waiting.is_empty() && !self.is_leaving && self.on_the_way < most
    }

    const fn most_on_the_way(&self) -> usize {
        if self.is_settled { MOST_ON_THE_WAY } else { 1 }
    }
}

#[derive(Debug)]
struct Question {
    words: Arc<Words>,
    caller: oneshot::Sender<Told>,
}

/// A script call on the way: when it is over, what waits may leave.
struct Trip {
    gather: Arc<Gather>,
    began: Instant,
    questions: usize,
    /// Whether more waited than left.
    was_full: bool,
    is_answered: bool,
    /// How often those that left alone had been given up, if it is one.
    alone: Option<u64>,
}

impl Trip {
    fn new(gather: &Arc<Gather>, questions: usize, was_full: bool) -> Self {
        Self {
            gather: Arc::clone(gather),
            began: Instant::now(),
            questions,
            was_full,
            is_answered: false,
            alone: None,
        }
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        let gather = &self.gather;
        let now = Instant::now();
        let mut state = gather.state.lock();
        if self.alone.is_none_or(|given_up| given_up == state.given_up) {
            state.on_the_way = state.on_the_way.saturating_sub(1);
            let alone = usize::from(self.alone.is_some());
            state.alone = state.alone.saturating_sub(alone);
        }
        let has_settled = state.is_settled || self.questions > 1;
        state.is_settled = self.is_answered && has_settled;
        if self.is_answered {
            state.heard = now;
            state.window.answered(self.began, now, self.was_full);
            let refused = state.waiting.answered(self.questions, now);
            tell_all(refused, &Failure::Overloaded);
        } else if let Some(then) = now.checked_sub(gather.timeout)
            && then >= state.heard
        {
            // Nothing was heard since they came.
            let unsent = state.waiting.since(then);
            let reason = format!(
                "no answer within {:?} to the calls before it",
                gather.timeout
            );
            tell_all(unsent, &Failure::Unreachable(reason));
        }
        gather.send_off(&mut state);
    }
}

fn tell_all(questions: Vec<Question>, failure: &Failure) {
    for question in questions {
        // Who went away meanwhile hears nothing.
        let _ = question.caller.send(Told::Answer(Err(failure.clone())));
    }
}

/// How a question goes.
enum Entered {
    /// By itself: its caller sends it.
    Alone(Trip),
    /// With others; and whether one that left alone has to come back first.
    Waiting(oneshot::Receiver<Told>, bool),
}

/// The one task that is about to send what waits, until it has.
struct Leaving {
    gather: Arc<Gather>,
    has_left: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.gather.state.lock();
        state.is_leaving = false;
        if self.has_left {
            self.gather.send_off(&mut state);
        } else {
            // The runtime ends: nobody will send them.
            state.waiting.take_all();
        }
    }
}

impl RedisStore {
    /// Asks the script for rates, with others that ask at the same time where that may be.
    pub(crate) async fn ask_rates(&self, words: &Arc<Words>) -> Result<Value, Failure> {
        let head = words.arguments.first().and_then(|head| head.first());
        let is_question = head.is_some_and(|request| *request <= Request::Acquire as u8);
        match self.gather.as_ref().filter(|_| is_question) {
            Some(gather) => gather.ask(words).await,
            None => {
                let script = &self.scripts.decide;
                script.run(&self.link, &words.keys, &words.arguments).await
            }
        }
    }
}

impl Gather {
    pub(crate) fn new(link: &Arc<Link>, scripts: &Arc<Scripts>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            scripts: Arc::clone(scripts),
            timeout,
            state: Mutex::new(State::new(timeout)),
        })
    }

    /// Whether a question that comes now is refused: as many wait as are answered in time.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waiting.is_full()
    }

    async fn ask(self: &Arc<Self>, words: &Arc<Words>) -> Result<Value, Failure> {
        let told = match self.enter(words)? {
            Entered::Alone(mut trip) => {
                let answer = self.alone(words).await;
                trip.is_answered = is_answer(&answer);
                return answer;
            }
            Entered::Waiting(told, false) => told.await,
            Entered::Waiting(mut told, true) => {
                let longest = self.timeout * (PATIENCE + 2);
                let in_time = match select(&mut told, pin!(sync::sleep(longest))).await {
                    Either::Left((told, _)) => Some(told),
                    Either::Right(_) => None,
                };
                match in_time {
                    Some(told) => told,
                    None => {
                        self.give_up_alone();
                        told.await
                    }
                }
            }
        };
        match told {
            Ok(Told::Answer(answer)) => answer,
            Ok(Told::Again) => self.alone(words).await,
            Err(_) => Err(Failure::Unknown("nobody waited for the answer".to_owned())),
        }
    }

    async fn alone(&self, words: &Words) -> Result<Value, Failure> {
        let script = &self.scripts.decide;
        script.run(&self.link, &words.keys, &words.arguments).await
    }

    /// Puts a question to those that wait, if it does not leave by itself.
    fn enter(self: &Arc<Self>, words: &Arc<Words>) -> Result<Entered, Failure> {
        let mut state = self.state.lock();
        if state.leaves_alone() {
            state.on_the_way += 1;
            state.alone += 1;
            let mut trip = Trip::new(self, 1, false);
            trip.alone = Some(state.given_up);
            return Ok(Entered::Alone(trip));
        }
        let (caller, told) = oneshot::channel();
        let words = Arc::clone(words);
        let entered = state
            .waiting
            .push(Question { words, caller }, Instant::now());
        entered.map_err(|_| Failure::Overloaded)?;
        self.send_off(&mut state);
        Ok(Entered::Waiting(told, state.alone > 0))
    }

    /// Nobody waits any more for those that left alone: their callers do not poll them, perhaps.
    fn give_up_alone(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.on_the_way = state.on_the_way.saturating_sub(state.alone);
        state.alone = 0;
        state.given_up += 1;
        self.send_off(&mut state);
    }

    /// Has what waits sent, if it is time and nobody does already.
    fn send_off(self: &Arc<Self>, state: &mut State) {
        if state.waiting.is_empty() || state.is_leaving {
            return;
        }
        if state.on_the_way >= state.most_on_the_way() {
            return;
        }
        if !sync::can_spawn() {
            // The last caller went away outside of a runtime: the next one sends what waits.
            return;
        }
        state.is_leaving = true;
        let leaving = Leaving {
            gather: Arc::clone(self),
            has_left: false,
        };
        sync::spawn(leave(leaving));
    }

    /// What leaves together: in the order in which it came, without those who gave up.
    fn take(self: &Arc<Self>) -> Option<(Vec<Question>, Trip)> {
        let mut state = self.state.lock();
        let most = state.window.size();
        let (mut questions, mut keys) = (Vec::new(), 0);
        while let Some(next) = state.waiting.front() {
            let count = next.words.keys.len();
            let is_large = count > usize::from(u8::MAX);
            let has_room = questions.len() < most && keys + count <= MOST_KEYS;
            if next.caller.is_closed() {
                state.waiting.pop();
            } else if questions.is_empty() || (has_room && !is_large) {
                keys += count;
                questions.extend(state.waiting.pop());
            } else {
                break;
            }
        }
        if questions.is_empty() {
            return None;
        }
        state.lonely = match questions.len() {
            1 => state.lonely.saturating_add(1),
            _ => 0,
        };
        state.on_the_way += 1;
        let was_full = questions.len() >= most;
        let trip = Trip::new(self, questions.len(), was_full);
        Some((questions, trip))
    }

    async fn carry(&self, questions: &[Question]) -> Result<Vec<Value>, Failure> {
        if let [question] = questions {
            return Ok(vec![self.alone(&question.words).await?]);
        }
        let words = questions.iter().map(|question| &*question.words);
        let (keys, arguments) = together(words);
        let script = &self.scripts.decide_many;
        match script.run(&self.link, &keys, &arguments).await? {
            Value::Array(answers) if answers.len() == questions.len() => Ok(answers),
            reply => Err(strange(&reply)),
        }
    }
}

/// Sends what waits, once the tasks that are ready have had their turn, and hands out the answers.
async fn leave(mut leaving: Leaving) {
    tokio::task::yield_now().await;
    let gather = Arc::clone(&leaving.gather);
    let taken = gather.take();
    let Some((questions, mut trip)) = taken else {
        leaving.has_left = true;
        return;
    };
    let answer = {
        let mut call = pin!(gather.carry(&questions));
        // It is sent in its first turn, where a connection stands: what comes later is sent later.
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        leaving.has_left = true;
        drop(leaving);
        match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => call.await,
        }
    };
    trip.is_answered = is_answer(&answer);
    drop(trip);
    match answer {
        Ok(answers) => {
            for (question, answer) in questions.into_iter().zip(answers) {
                // Who went away meanwhile hears nothing.
                let _ = question.caller.send(told(answer));
            }
        }
        Err(failure) => tell_all(questions, &failure),
    }
}

/// Whether the server said anything.
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

    fn gather(timeout: Duration) -> Arc<Gather> {
        let link = Arc::new(Link::new(&"redis://localhost".parse().unwrap(), timeout));
        Gather::new(&link, &Arc::new(Scripts::new()), timeout)
    }

    /// Questions of so many keys each, and what their callers hear.
    fn wait(gather: &Arc<Gather>, keys: &[usize]) -> Vec<oneshot::Receiver<Told>> {
        let mut state = gather.state.lock();
        // As if as many were on the way as may be.
        state.on_the_way = MOST_ON_THE_WAY;
        let entered = keys.iter().map(|count| {
            let keys = vec![count.to_string().into_bytes(); *count];
            let charges = keys.iter().map(|_| b"c".to_vec());
            let arguments = [vec![1]].into_iter().chain(charges).collect();
            let words = Arc::new(Words { keys, arguments });
            let (caller, told) = oneshot::channel();
            let question = Question { words, caller };
            assert!(state.waiting.push(question, Instant::now()).is_ok());
            told
        });
        entered.collect()
    }

    /// How many keys each question has of those that leave together, time after time.
    fn taken(gather: &Arc<Gather>) -> Vec<Vec<usize>> {
        let taken = std::iter::from_fn(|| gather.take());
        taken
            .map(|(questions, _)| questions.iter().map(|one| one.words.keys.len()).collect())
            .collect()
    }

    #[test]
    fn no_more_leave_together_than_one_call_may_hold_and_in_their_order() {
        let ours = gather(Duration::from_secs(1));
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
        let ours = gather(Duration::from_secs(1));
        assert!(ours.state.lock().leaves_alone());
        let one_on_the_way = |state: &mut State| {
            (state.on_the_way, state.is_settled) = (1, true);
            state.leaves_alone()
        };
        for _ in 0..LONELY {
            assert!(!one_on_the_way(&mut ours.state.lock()));
            let _told = wait(&ours, &[1]);
            assert_eq!(taken(&ours), [[1]]);
        }
        assert!(one_on_the_way(&mut ours.state.lock()));
        {
            let mut state = ours.state.lock();
            state.is_leaving = true;
            assert!(!state.leaves_alone(), "it would overtake what leaves");
            state.is_leaving = false;
            state.is_settled = false;
            assert!(!state.leaves_alone(), "it could fall behind");
            (state.on_the_way, state.is_settled) = (MOST_ON_THE_WAY, true);
            assert!(!state.leaves_alone());
        }
        let _told = wait(&ours, &[1, 1]);
        assert!(!ours.state.lock().leaves_alone(), "it would overtake them");
        assert_eq!(taken(&ours), [[1, 1]]);
        assert!(!one_on_the_way(&mut ours.state.lock()), "there is company");
    }

    #[test]
    fn who_went_away_is_left_out() {
        let ours = gather(Duration::from_secs(1));
        let mut told = wait(&ours, &[1, 2, 3, 4]);
        drop(told.remove(2));
        drop(told.remove(0));
        assert_eq!(taken(&ours), [[2, 4]]);
        drop(wait(&ours, &[1, 2, 3]));
        assert_eq!(taken(&ours), [[0; 0]; 0]);
        assert!(ours.state.lock().waiting.is_empty());
    }

    /// Asks about a key of its own. One caller goes away, and one is not polled while others are
    /// waited for.
    fn ask(ours: &Arc<Gather>, calls: &Calls, number: usize, others: impl Fn()) {
        let key = u8::try_from(number).unwrap();
        let words = Arc::new(Words {
            keys: vec![vec![key]],
            arguments: vec![vec![Request::Acquire as u8], b"c".to_vec()],
        });
        let mut call = pin!(ours.ask(&words));
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
    fn run(calls: &Calls, words: &[Vec<u8>]) -> String {
        if words[0] == b"EVALSHA" && thread_rng().gen_range(0..8) == 0 {
            return "-NOSCRIPT No matching script.\r\n".to_owned();
        }
        let count: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
        let answers = words[3..3 + count]
            .iter()
            .map(|key| calls.run(usize::from(key[0])));
        let answers: String = answers.collect();
        match count {
            1 => answers,
            _ => format!("*{count}\r\n{answers}"),
        }
    }

    /// Callers come, go away, are not polled and are answered in any order, while connections break and
    /// the runtime ends: nobody is left behind, each call runs once at most, and whoever hears that it
    /// was not sent hears the truth.
    #[test]
    fn every_question_has_one_end() {
        sync::model::check(1_000, || {
            let (server, calls) = (FakeServer::start(), Arc::new(Calls::default()));
            let ours = gather(Duration::from_secs(thread_rng().gen_range(0..2)));
            {
                let mut state = ours.state.lock();
                state.is_settled = thread_rng().gen_range(0..2) == 0;
                state.lonely = thread_rng().gen_range(0..=LONELY);
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
                    assert!(ours.state.lock().on_the_way <= MOST_ON_THE_WAY);
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
                server.answer(|words| run(&calls, words));
            }
            trouble.join().unwrap();
            callers
                .into_iter()
                .for_each(|caller| caller.join().unwrap());
            calls.check();
            sync::model::end_runtime();
            let state = ours.state.lock();
            assert_eq!((state.on_the_way, state.alone), (0, 0));
            assert!(state.waiting.is_empty() && !state.is_leaving);
        });
    }
}
