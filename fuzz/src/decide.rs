//! Decisions: any limit, any steps of the clock, any costs. Every number in an answer is true (P2,
//! P3), a refusal and a peek change nothing (P1), and the memory store answers as the core does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use quell::calendar::SystemCalendar;
use quell::clock::{Clock, ManualClock};
use quell::{Cost, Decision, KeyedLimiter, Limit, Operation, Outcome, Rate};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::charge::{Charge, Entry, decide_one};
use quell_core::decision::RetryAfter;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::limit_error::LimitError;
use quell_core::rule::CalendarEdges;
use quell_core::state::State;
use quell_core::time::Now;

/// The most steps taken from one input.
const STEPS: usize = 100;

/// Clocks go up to the year 2550. At the very end of 64 bits of nanoseconds, in 2554, the end of a
/// calendar window or a ban would not fit into an instant.
const LAST_INSTANT: u64 = 18_302_000_000_000_000_000;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(bytes: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let Ok(limit) = input.limit() else {
        return;
    };
    let mut now = input.start.nanos().min(LAST_INSTANT);
    let clock = Arc::new(ManualClock::new(Now::from_nanos(now)));
    let store = KeyedLimiter::<u8, _>::with(limit.clone(), 1000, Shared(Arc::clone(&clock)))
        .expect("an active limit can be asked");
    let mut core = Core::new(limit, now);
    let mut same_clock = true;
    for step in input.steps.into_iter().take(STEPS) {
        match step {
            Step::Wait(wait) => now = now.saturating_add(wait.nanos()).min(LAST_INSTANT),
            Step::Back(back) => {
                // The store forgets a key at rest. It may therefore answer differently if the clock
                // goes back after that.
                same_clock = false;
                now = now.saturating_sub(back.nanos());
            }
            Step::Ask { peek, key, cost } => {
                let Some(cost) = Cost::new(cost.nanos()) else {
                    continue;
                };
                let operation = if peek {
                    Operation::Peek
                } else {
                    Operation::Acquire
                };
                clock.set(Now::from_nanos(now));
                let decision = core.checked(operation, key % 4, cost, now);
                if same_clock {
                    let stored = match operation {
                        Operation::Peek => store.peek(&(key % 4), cost),
                        Operation::Acquire => store.try_acquire_n(&(key % 4), cost),
                    };
                    assert_eq!(stored, decision, "the store says something else");
                }
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Input {
    start: Number,
    kind: Kind,
    ban: Option<(u8, Number, Number, Number)>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Token(Number, Number, Number, Option<Number>),
    Refill(Number, Number, Number),
    Leaky(Number, Number, Number, Number),
    Fixed(Number, Number),
    Calendar(Number, Unit, Zone),
    Segments(Number, Number, u16),
    Log(Number, Number, u16),
}

#[derive(Arbitrary, Debug)]
enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// Time zones whose clocks change by an hour, by half an hour, and by a whole day.
#[derive(Arbitrary, Debug)]
enum Zone {
    Utc,
    Berlin,
    LordHowe,
    Apia,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Wait(Number),
    Back(Number),
    Ask { peek: bool, key: u8, cost: Number },
}

/// Small numbers, round ones, and those near 2^64, all within a fuzzer's reach.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Number(u16, u8);

impl Number {
    fn nanos(self) -> u64 {
        let Self(digits, kind) = self;
        let digits = u64::from(digits);
        match kind % 8 {
            0..=2 => digits & 0xFF,
            3 => digits * 1_000_000,
            4 => digits * 1_000_000_000,
            5 => digits * 86_400_000_000_000,
            6 => digits << (kind / 8),
            _ => u64::MAX - digits,
        }
    }

    fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos())
    }
}

impl Input {
    fn limit(&self) -> Result<Limit, LimitError> {
        let rate = |count: &Number, period: &Number| Rate::new(count.nanos(), period.duration());
        let limit = match &self.kind {
            Kind::Token(count, period, burst, initial) => {
                let bucket = Limit::token_bucket(rate(count, period)?).burst(burst.nanos());
                match initial {
                    Some(tokens) => bucket.initial(tokens.nanos()),
                    None => bucket,
                }
                .build()
            }
            Kind::Refill(amount, every, burst) => {
                TokenBucket::refill(amount.nanos(), every.duration())
                    .burst(burst.nanos())
                    .build()
            }
            Kind::Leaky(count, period, burst, after) => Limit::leaky_bucket(rate(count, period)?)
                .burst(burst.nanos())
                .delay_after(after.nanos())
                .build(),
            Kind::Fixed(limit, window) => {
                Limit::fixed_window(limit.nanos(), window.duration()).build()
            }
            Kind::Calendar(limit, unit, zone) => {
                Limit::calendar_window(limit.nanos(), unit.of_core(), zone.name()).build()
            }
            Kind::Segments(limit, window, segments) => {
                Limit::sliding_window(limit.nanos(), window.duration())
                    .segments(u32::from(*segments))
                    .build()
            }
            Kind::Log(limit, window, most) => Limit::sliding_log(limit.nanos(), window.duration())
                .max_entries(u32::from(*most))
                .build(),
        }?;
        let Some((after, within, first, second)) = &self.ban else {
            return Ok(limit);
        };
        let lengths = vec![first.duration(), second.duration()];
        let ban = Ban::new(u32::from(*after % 8), Some(within.duration()), lengths)?;
        Ok(limit.with_ban(ban))
    }
}

impl Unit {
    const fn of_core(&self) -> CalendarUnit {
        match self {
            Self::Second => CalendarUnit::Second,
            Self::Minute => CalendarUnit::Minute,
            Self::Hour => CalendarUnit::Hour,
            Self::Day => CalendarUnit::Day,
            Self::Week => CalendarUnit::Week,
            Self::Month => CalendarUnit::Month,
            Self::Year => CalendarUnit::Year,
        }
    }
}

impl Zone {
    const fn name(&self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            Self::Berlin => "Europe/Berlin",
            Self::LordHowe => "Australia/Lord_Howe",
            Self::Apia => "Pacific/Apia",
        }
    }
}

/// A clock that this test sets.
#[derive(Debug)]
struct Shared(Arc<ManualClock>);

impl Clock for Shared {
    fn now(&self) -> Now {
        self.0.now()
    }
}

/// The core, with the states of a few keys.
struct Core {
    active: ActiveLimit,
    calendar: SystemCalendar,
    states: HashMap<u8, State>,
}

impl Core {
    fn new(limit: Limit, now: u64) -> Self {
        let active = ActiveLimit {
            id: LimitId::default(),
            limit,
            since: Now::from_nanos(now).monotonic,
            place: Default::default(),
        };
        Self {
            active,
            calendar: SystemCalendar::default(),
            states: HashMap::new(),
        }
    }

    fn state(&self, key: u8) -> State {
        let rest = || State::rest(self.active.id);
        self.states.get(&key).cloned().unwrap_or_else(rest)
    }

    fn ask(&self, operation: Operation, state: &mut State, cost: Cost, now: u64) -> Decision {
        let now = Now::from_nanos(now);
        let mut charge = Charge::alone(&self.active, cost);
        let calendar = self.active.limit.calendar();
        charge.edges = calendar.map(|calendar| self.calendar.edges(calendar, now.wall));
        let charge = &charge;
        decide_one(now, operation, &mut Entry { charge, state })
    }

    fn peek(&self, state: &State, cost: Cost, now: u64) -> Decision {
        self.ask(Operation::Peek, &mut state.clone(), cost, now)
    }

    /// Asks, keeps the state, and checks the answer.
    fn checked(&mut self, operation: Operation, key: u8, cost: Cost, now: u64) -> Decision {
        let mut state = self.state(key);
        let before = self.peek(&state, cost, now);
        let decision = self.ask(operation, &mut state, cost, now);
        let allowed = decision.outcome.is_allow();
        assert_eq!(before.outcome.is_allow(), allowed, "a peek says so before");
        if operation == Operation::Peek || (!allowed && self.active.limit.ban().is_none()) {
            assert_eq!(before, decision);
            assert_eq!(self.peek(&state, cost, now), before, "it cost something");
        }
        self.numbers_are_true(&state, &decision, now);
        self.wait_is_true(&state, &decision, cost, now);
        if operation == Operation::Acquire {
            self.states.insert(key, state);
        }
        decision
    }

    /// P3.
    fn numbers_are_true(&self, state: &State, decision: &Decision, now: u64) {
        let remaining = decision.remaining;
        assert_eq!(decision.limit, self.active.limit.max());
        assert!(remaining <= decision.limit, "{remaining} remain");
        if let Some(cost) = Cost::new(remaining) {
            assert!(
                self.peek(state, cost, now).outcome.is_allow(),
                "not so much"
            );
        }
        if let Some(cost) = remaining.checked_add(1).and_then(Cost::new) {
            assert!(!self.peek(state, cost, now).outcome.is_allow(), "more fits");
        }
    }

    /// P2.
    fn wait_is_true(&self, state: &State, decision: &Decision, cost: Cost, now: u64) {
        let max = self.active.limit.max();
        let Outcome::Deny(wait) = decision.outcome else {
            assert!(cost.get() <= max);
            return;
        };
        let RetryAfter::After(wait) = wait else {
            assert!(cost.get() > max, "never, but it could pass");
            return;
        };
        assert!(cost.get() <= max, "it can never pass");
        assert!(!wait.is_zero(), "a refusal never says 0");
        let later = u64::try_from(wait.as_nanos()).ok();
        let Some(later) = later.and_then(|wait| now.checked_add(wait)) else {
            return;
        };
        assert!(
            self.peek(state, cost, later).outcome.is_allow(),
            "too early"
        );
        assert!(
            !self.peek(state, cost, later - 1).outcome.is_allow(),
            "too late"
        );
    }
}
