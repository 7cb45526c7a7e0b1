//! Split over model places: every combination of what places do, in every order in which they may answer.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;
use quell_core::charge::{Charge, LimitSet};
use quell_core::cost::Cost;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::on_failure::OnFailure;
use quell_core::time::Monotonic;

use super::*;

/// A place with room for a number of charges, and a log of its calls.
#[derive(Debug, Default)]
struct Place {
    room: usize,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Current charges, by their names.
    charges: Vec<usize>,
    asked: usize,
    /// Charges that it was asked to take back.
    refunds: Vec<usize>,
}

/// Fate of a call to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Answered,
    NotSent,
    /// The call ran, and the answer is lost.
    Lost,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// Identifies the charge; none if the part had nothing to charge.
    Charged(usize),
    Full,
    /// A limit that passed, without the charge.
    Passed,
}

/// A part that asks one place, and is not polled to its end at once.
#[derive(Debug)]
struct ModelPart {
    place: Arc<Place>,
    acquire: Call,
    refund: Call,
    /// Turns of the caller before a call arrives, and before its answer does.
    turns: usize,
}

/// Yields this many times.
async fn yields(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

impl Part for ModelPart {
    type Answer = Answer;
    type Failure = Call;

    async fn acquire(&self) -> Result<Answer, Call> {
        if self.acquire == Call::NotSent {
            return Err(Call::NotSent);
        }
        yields(self.turns).await;
        let answer = {
            let mut log = self.place.log.lock();
            log.asked += 1;
            let name = log.asked;
            match log.charges.len() < self.place.room {
                true => {
                    log.charges.push(name);
                    Answer::Charged(name)
                }
                false => Answer::Full,
            }
        };
        yields(self.turns).await;
        match self.acquire {
            Call::Lost => Err(Call::Lost),
            _ => Ok(answer),
        }
    }

    fn passes(&self, answer: &Answer) -> bool {
        matches!(answer, Answer::Charged(_))
    }

    async fn refund(&self, answer: &mut Answer) -> Result<(), Call> {
        let Answer::Charged(name) = *answer else {
            panic!("{answer:?} is no charge");
        };
        if self.refund == Call::NotSent {
            return Err(Call::NotSent);
        }
        yields(self.turns).await;
        {
            let mut log = self.place.log.lock();
            log.refunds.push(name);
            log.charges.retain(|charge| *charge != name);
        }
        yields(self.turns).await;
        if self.refund == Call::Lost {
            return Err(Call::Lost);
        }
        *answer = Answer::Passed;
        Ok(())
    }
}

const CALLS: [Call; 3] = [Call::Answered, Call::NotSent, Call::Lost];

/// Parts on places of their own, with room or without, that answer in each order: all combinations.
fn mixtures() -> impl Iterator<Item = [ModelPart; 3]> {
    const TURNS: [[usize; 3]; 6] = [
        [0, 0, 0],
        [0, 1, 2],
        [1, 0, 2],
        [2, 1, 0],
        [1, 2, 0],
        [2, 0, 1],
    ];
    const KINDS: usize = 3 * 3 * 2;
    let kinds = KINDS * KINDS * KINDS;
    (0..kinds).flat_map(move |kind| {
        TURNS.iter().map(move |turns| {
            [0, 1, 2].map(|index| {
                let kind = kind / KINDS.pow(u32::try_from(index).unwrap()) % KINDS;
                ModelPart {
                    place: Arc::new(Place {
                        room: kind % 2,
                        ..Place::default()
                    }),
                    acquire: CALLS[kind / 2 % 3],
                    refund: CALLS[kind / 6],
                    turns: turns[index],
                }
            })
        })
    })
}

/// The outcome of one part agrees with what its place did.
fn agrees(part: &ModelPart, outcome: &PartOutcome<Answer, Call>, is_charged: bool) {
    let log = part.place.log.lock();
    let stands = log.charges.len();
    let asked = usize::from(part.acquire != Call::NotSent);
    assert_eq!(log.asked, asked, "asked once: {part:?}");
    match outcome {
        PartOutcome::Decided(Answer::Charged(1)) if is_charged => assert_eq!(stands, 1),
        PartOutcome::Decided(Answer::Passed) => {
            assert!(!is_charged);
            assert_eq!((stands, &*log.refunds), (0, &[1][..]));
        }
        PartOutcome::Decided(Answer::Full) => assert_eq!((stands, log.refunds.len()), (0, 0)),
        PartOutcome::Kept { answer, failure } => {
            assert_eq!((answer, failure), (&Answer::Charged(1), &part.refund));
            assert_eq!(stands, usize::from(*failure == Call::NotSent));
        }
        PartOutcome::Failed(failure) => {
            assert_eq!(*failure, part.acquire);
            let may_stand = *failure == Call::Lost && part.place.room > 0;
            assert_eq!((stands, log.refunds.len()), (may_stand.into(), 0));
        }
        PartOutcome::Decided(_) => panic!("{outcome:?} of {part:?}"),
    }
}

#[tokio::test]
async fn all_are_charged_or_none_but_what_is_kept_or_lost() {
    let mut charged = 0;
    for parts in mixtures() {
        let split = acquire(&parts).await;
        let passes = |part: &ModelPart| part.acquire == Call::Answered && part.place.room > 0;
        assert_eq!(split.is_charged, parts.iter().all(passes));
        for (part, outcome) in parts.iter().zip(&split.parts) {
            agrees(part, outcome, split.is_charged);
        }
        charged += usize::from(split.is_charged);
    }
    assert_eq!(charged, 3 * 3 * 3 * 6);
}

/// A part that is answered once all parts are asked.
struct Together(Arc<tokio::sync::Barrier>);

impl Part for Together {
    type Answer = ();
    type Failure = ();

    async fn acquire(&self) -> Result<(), ()> {
        self.0.wait().await;
        Ok(())
    }

    fn passes(&self, &(): &()) -> bool {
        true
    }

    async fn refund(&self, &mut (): &mut ()) -> Result<(), ()> {
        Err(())
    }
}

#[test]
fn no_part_waits_for_another() {
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let parts = [0, 1, 2].map(|_| Together(Arc::clone(&barrier)));
    assert!(polled(acquire(&parts), 2));
}

/// Polls `future` this many times, and then drops it.
fn polled(future: impl Future<Output = impl Sized>, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).any(|_| future.as_mut().poll(&mut context).is_ready())
}

/// Wherever a caller stops, either the set is charged everywhere, or nothing is.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_refused_set_charged() {
    let is_answered =
        |part: &ModelPart| (part.acquire, part.refund) == (Call::Answered, Call::Answered);
    let mut left = 0;
    for parts in mixtures().filter(|parts| parts.iter().all(is_answered)) {
        let all: Vec<_> = parts.iter().map(|part| Arc::clone(&part.place)).collect();
        let room = all.iter().map(|place| place.room).min().unwrap();
        let call = run_to_end(async move { acquire(&parts).await });
        left += usize::from(!polled(call, 1));
        // More turns than needed.
        yields(32).await;
        for place in &all {
            assert_eq!(place.log.lock().charges.len(), room);
        }
    }
    assert_eq!(left, 2 * 2 * 2 * 6);
}

/// The reason for `run_to_end`: a call that is simply dropped leaves charges at some point.
#[tokio::test]
async fn a_call_that_does_not_run_to_its_end_leaves_a_refused_set_charged() {
    let [full, room] = [0, 1].map(|room| {
        Arc::new(Place {
            room,
            ..Place::default()
        })
    });
    let part = |place: &Arc<Place>| ModelPart {
        place: Arc::clone(place),
        acquire: Call::Answered,
        refund: Call::Answered,
        turns: 1,
    };
    assert!(!polled(acquire(&[part(&room), part(&full)]), 2));
    yields(32).await;
    assert_eq!(room.log.lock().charges.len(), 1);
}

/// Two sets that want the last unit of the same two limits, in either order: at most one gets it, and
/// when both are over, a unit that neither has is available.
#[tokio::test]
async fn sets_that_meet_neither_block_each_other_nor_admit_more_than_there_is() {
    let mut refused = 0;
    for kind in 0..3_usize.pow(4) {
        let turns = |index: u32| kind / 3_usize.pow(index) % 3;
        let places = [0, 1].map(|_| {
            Arc::new(Place {
                room: 1,
                ..Place::default()
            })
        });
        let part = |place: usize, turns: usize| ModelPart {
            place: Arc::clone(&places[place]),
            acquire: Call::Answered,
            refund: Call::Answered,
            turns,
        };
        let one = [part(0, turns(0)), part(1, turns(1))];
        let other = [part(1, turns(2)), part(0, turns(3))];
        let (one, other) = futures_util::future::join(acquire(&one), acquire(&other)).await;
        let charged = usize::from(one.is_charged) + usize::from(other.is_charged);
        assert!(charged <= 1);
        refused += usize::from(charged == 0);
        for place in &places {
            assert_eq!(place.log.lock().charges.len(), charged);
        }
    }
    assert!(refused > 0, "they refuse each other in some order");
}

impl LocalPart for ModelPart {
    type Answer = Answer;
    type Failure = Call;

    fn acquire(&self) -> Result<Answer, Call> {
        if self.acquire == Call::NotSent {
            return Err(Call::NotSent);
        }
        let mut log = self.place.log.lock();
        log.asked += 1;
        let name = log.asked;
        match log.charges.len() < self.place.room {
            true => {
                log.charges.push(name);
                Ok(Answer::Charged(name))
            }
            false => Ok(Answer::Full),
        }
    }

    fn passes(&self, answer: &Answer) -> bool {
        matches!(answer, Answer::Charged(_))
    }

    fn refund(&self, answer: &mut Answer) {
        let Answer::Charged(name) = *answer else {
            panic!("{answer:?} is no charge");
        };
        let mut log = self.place.log.lock();
        log.refunds.push(name);
        log.charges.retain(|charge| *charge != name);
        *answer = Answer::Passed;
    }
}

/// A local part and one that is asked after it, with room or without, that answer or fail.
fn local_and_last() -> impl Iterator<Item = [ModelPart; 2]> {
    let calls = [(Call::Answered, 1), (Call::Answered, 0), (Call::NotSent, 1)];
    let last = calls.into_iter().chain([(Call::Lost, 1), (Call::Lost, 0)]);
    let part = |(acquire, room)| ModelPart {
        place: Arc::new(Place {
            room,
            ..Place::default()
        }),
        acquire,
        refund: Call::Answered,
        turns: 1,
    };
    last.flat_map(move |last| calls.map(|local| [part(local), part(last)]))
}

fn stands(part: &ModelPart) -> usize {
    part.place.log.lock().charges.len()
}

#[tokio::test]
async fn a_local_part_is_charged_if_the_last_part_is() {
    let passes = |part: &ModelPart| part.acquire == Call::Answered && part.place.room > 0;
    for [local, last] in local_and_last() {
        let call = acquire_after(&local, Part::acquire(&last), |answer| {
            Part::passes(&last, answer)
        });
        let split = call.await;
        let is_charged = passes(&local) && passes(&last);
        assert_eq!(
            stands(&local),
            usize::from(is_charged),
            "{local:?} {last:?}"
        );
        let log = local.place.log.lock();
        assert_eq!(
            log.refunds.len(),
            usize::from(passes(&local) && !is_charged)
        );
        let is_asked = passes(&local) && last.acquire != Call::NotSent;
        assert_eq!(
            last.place.log.lock().asked,
            usize::from(is_asked),
            "{last:?}"
        );
        match split {
            Ok(split) if is_charged => {
                let both = (split.local, split.last);
                assert_eq!(both, (Answer::Charged(1), Some(Answer::Charged(1))));
            }
            Ok(split) if passes(&local) => {
                assert_eq!(
                    (split.local, split.last),
                    (Answer::Passed, Some(Answer::Full))
                );
            }
            Ok(split) => assert_eq!((split.local, split.last), (Answer::Full, None)),
            Err(failure) if passes(&local) => assert_eq!(failure, last.acquire),
            Err(failure) => assert_eq!(failure, local.acquire),
        }
    }
}

#[tokio::test]
async fn a_local_part_is_refunded_when_its_caller_goes_away() {
    let mut left = 0;
    for [local, last] in local_and_last() {
        let call = acquire_after(&local, Part::acquire(&last), |answer| {
            Part::passes(&last, answer)
        });
        // Asked, but not answered.
        if polled(call, 2) {
            continue;
        }
        left += 1;
        assert_eq!(stands(&local), 0, "{local:?} {last:?}");
        assert_eq!(local.place.log.lock().refunds.len(), 1);
    }
    assert_eq!(left, 4);
}

#[test]
fn an_owned_set_says_all_that_a_store_is_told() {
    let active = ActiveLimit {
        id: LimitId(3),
        limit: Limit::per_second(1).build().unwrap(),
        since: Monotonic::ORIGIN,
        place: LimitPlace::NONE,
    };
    let mut plain = Charge::alone(&active, Cost::ONE);
    let mut set = LimitSet::new();
    set.add(b"key", 1, &plain);
    plain.cost = Cost::new(7).unwrap();
    plain.shadow = true;
    plain.counts_calls = true;
    plain.tag = 5;
    plain.policy.on_failure = Some(OnFailure::Allow);
    set.add(b"other", 2, &plain);
    let owned = OwnedSet::new(&set);
    assert_eq!(format!("{:?}", owned.as_set()), format!("{set:?}"));
}
