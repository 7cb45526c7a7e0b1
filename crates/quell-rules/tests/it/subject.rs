//! A subject for scenarios, as simple as possible: the core and a map of states.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Unit, Zoned, ZonedRound};
use quell_core::actual::CostOrigin;
use quell_core::algorithm::fixed_window::{Anchor, Calendar, CalendarUnit};
use quell_core::algorithm::{At, Edges};
use quell_core::charge::{self, Action, Charge, Entry, LimitSet, Operation};
use quell_core::claim::{self, Claim};
use quell_core::cost::Cost;
use quell_core::descriptor::Query;
use quell_core::end_hold::{self, Ending};
use quell_core::hold::HoldId;
use quell_core::limit::{ActiveLimit, LimitId};
use quell_core::rule::{CalendarEdges, DomainRules, LimitIds, ReplacedLimit, RuleSet};
use quell_core::state::State;
use quell_core::time::{Now, Wall};
use quell_core::verdict::Verdict;
use quell_rules::scenario::{EndAnswer, Subject};

/// Rules in force and a state for every key.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    rules: RuleSet,
    ids: LimitIds,
    limits: BTreeMap<LimitId, ActiveLimit>,
    states: HashMap<Vec<u8>, State>,
    replaced: Vec<ReplacedLimit>,
    held: BTreeMap<HoldId, Kept>,
}

/// Record of an id.
#[derive(Debug)]
struct Kept {
    outcome: &'static str,
    places: Vec<Place>,
    descriptors: usize,
    verdict: Verdict,
}

/// The charge on one key.
#[derive(Clone, Debug)]
struct Place {
    key: Vec<u8>,
    cost: Cost,
    origin: CostOrigin,
    edges: Option<Edges>,
}

impl Subject for Plain {
    fn reset(&mut self, _now: Now) -> Result<(), String> {
        *self = Self::default();
        Ok(())
    }

    fn set_rules(&mut self, domains: Vec<DomainRules>, now: Now) -> Result<(), String> {
        let (rules, changes) = self.rules.reload(domains, now, &self.ids);
        self.rules = rules;
        for active in changes.added {
            self.limits.insert(active.id, active);
        }
        self.states
            .retain(|_, state| !changes.removed.contains(&state.limit));
        self.replaced.extend(changes.replaced);
        Ok(())
    }

    fn ask(
        &mut self,
        operation: Operation,
        query: &Query<'_>,
        now: Now,
    ) -> Result<Verdict, String> {
        let set = self.rules.resolve(query, now, &Berlin);
        let (keys, mut states) = self.load(&set, now)?;
        let mut entries = entries(&set, &mut states);
        let decisions = charge::decide(now, operation, &mut entries);
        let verdict = set.combine(&decisions);
        if operation == Operation::Acquire {
            self.states.extend(keys.into_iter().zip(states));
        }
        Ok(verdict)
    }

    fn hold(&mut self, claim: &Claim<'_>, query: &Query<'_>, now: Now) -> Result<Verdict, String> {
        if let Some(kept) = self.held.get(claim.id) {
            return Ok(kept.verdict.clone());
        }
        let set = self.rules.resolve(query, now, &Berlin);
        let charges = set.charges();
        let (keys, mut states) = self.load(&set, now)?;
        let mut entries = entries(&set, &mut states);
        let claimed = claim::claim(now, claim, &mut entries).ok_or("too many holds")?;
        let verdict = set.combine(&claimed.decisions);
        let places = charges.iter().zip(set.cost_origins()).zip(&keys);
        let places = places.zip(claimed.held);
        let places = places.filter(|(_, held)| *held);
        let places = places.map(|(((charge, origin), key), _)| Place {
            key: key.clone(),
            cost: charge.cost,
            origin,
            edges: charge.edges,
        });
        let kept = Kept {
            outcome: "stands",
            places: places.collect(),
            descriptors: set.descriptors(),
            verdict: verdict.clone(),
        };
        if !kept.places.is_empty() {
            self.held.insert(claim.id.clone(), kept);
        }
        self.states.extend(keys.into_iter().zip(states));
        Ok(verdict)
    }

    fn end(&mut self, id: &HoldId, ending: Ending, now: Now) -> Result<EndAnswer, String> {
        let Some(kept) = self.held.get_mut(id) else {
            return Ok(EndAnswer {
                outcome: "unknown",
                repeated: false,
            });
        };
        let mut repeated = true;
        let mut next = VecDeque::new();
        if kept.outcome == "stands" && ending.has_wrong_count(kept.descriptors) {
            return Err(format!("settle it with {} numbers", kept.descriptors));
        }
        if kept.outcome == "stands" {
            let mut stands = false;
            for place in &kept.places {
                let state = self.states.get_mut(&place.key).ok_or("no state")?;
                let active = self.limits.get(&state.limit).ok_or("no limit")?;
                let at = At {
                    now,
                    since: active.since,
                    edges: place.edges,
                };
                let ended = end_hold::end(state, &active.limit, &at, id, &ending, place.origin);
                repeated &= !ended.found;
                stands |= ended.stands;
                next.extend(ended.next);
            }
            kept.outcome = match ending {
                _ if stands => "stands",
                _ if repeated => "expired",
                Ending::Settle(_) => "settled",
                Ending::Cancel => "cancelled",
                _ => "released",
            };
        }
        let answer = EndAnswer {
            outcome: kept.outcome,
            repeated,
        };
        while let Some(id) = next.pop_front() {
            next.extend(self.advance(&id, now)?);
        }
        Ok(answer)
    }

    fn administer(
        &mut self,
        rule: Option<&str>,
        query: &Query<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, String> {
        let set = match rule {
            None => self.rules.resolve(query, now, &Berlin),
            Some(rule) => {
                let (domain, entries) = (query.domain(), &query.descriptors()[0]);
                let selected = self.rules.select(domain, rule, entries, now, &Berlin);
                selected.ok_or("no such rule")?
            }
        };
        let (keys, mut states) = self.load(&set, now)?;
        let mut changed = 0;
        for (charge, state) in set.charges().iter().zip(&mut states) {
            let limit = &charge.active.limit;
            changed += usize::from(match action {
                Action::Ban(length, _) => {
                    charge::ban(state, limit, &charge.at(now), length);
                    true
                }
                Action::Lift => charge::lift(state, now),
                Action::Refund => charge::refund(now, &mut Entry { charge, state }),
                Action::Forgive => {
                    let used = !state.time_to_own_rest(limit, now).is_zero();
                    end_hold::forgive(state, limit, &charge.at(now));
                    used
                }
                Action::Adjust(_) | Action::Carry => return Err("no operator's".to_owned()),
            });
        }
        let rest = keys.into_iter().zip(states);
        self.states.extend(rest);
        Ok(changed)
    }
}

impl Plain {
    /// Moves a waiting call up as far as possible. Returns the calls right behind it.
    fn advance(&mut self, id: &HoldId, now: Now) -> Result<Vec<HoldId>, String> {
        let places = self.held.get(id).ok_or("no hold")?.places.clone();
        let mut states = Vec::new();
        let mut charges = Vec::new();
        for place in &places {
            let state = self.states.get(&place.key).ok_or("no state")?;
            let active = self.limits.get(&state.limit).ok_or("no limit")?;
            let mut charge = Charge::alone(active, place.cost);
            charge.edges = place.edges;
            charges.push(charge);
            states.push(state.clone());
        }
        let mut entries: Vec<_> = charges
            .iter()
            .zip(&mut states)
            .map(|(charge, state)| Entry { charge, state })
            .collect();
        let advanced = claim::advance(now, id, &mut entries);
        let keys = places.into_iter().map(|place| place.key);
        self.states.extend(keys.zip(states));
        Ok(advanced.map_or_else(Vec::new, |(_, behind)| behind))
    }

    /// The keys of a set and their states, each under the limit that is charged.
    fn load(&self, set: &LimitSet<'_>, now: Now) -> Result<(Vec<Vec<u8>>, Vec<State>), String> {
        let (mut keys, mut states) = (Vec::new(), Vec::new());
        for charge in set.charges() {
            let key = set.key(charge).as_bytes().to_vec();
            let rest = || State::rest(charge.active.id);
            let mut state = self.states.get(&key).cloned().unwrap_or_else(rest);
            self.carry(&mut state, &charge.at(now))?;
            keys.push(key);
            states.push(state);
        }
        Ok((keys, states))
    }

    /// Follows a state's limit through all limits that replaced it.
    fn carry(&self, state: &mut State, at: &At) -> Result<(), String> {
        for ReplacedLimit { from, to, at: now } in &self.replaced {
            if state.limit == *from {
                let missing = || format!("limit {from:?} is not known");
                let from = self.limits.get(from).ok_or_else(missing)?;
                let to = self.limits.get(to).ok_or_else(missing)?;
                let now = now.ok_or("a change without an instant")?;
                let at = At { now, ..*at };
                state.carry(&from.limit, to, &at);
            }
        }
        Ok(())
    }
}

/// Calendar windows as jiff knows them.
struct Berlin;

impl CalendarEdges for Berlin {
    fn edges(&self, calendar: &Calendar, wall: Wall) -> Edges {
        let zone = TimeZone::get(&calendar.zone).unwrap();
        let now = Timestamp::from_nanosecond(i128::from(wall.as_nanos())).unwrap();
        let now = now.to_zoned(zone);
        let [start, end, next_end] = if calendar.anchor == Anchor::UnitStart {
            let start = start_of(&now, calendar.unit);
            let end = next(&start, calendar.unit);
            [start.clone(), end.clone(), next(&end, calendar.unit)]
        } else {
            anchored(&now, calendar.anchor)
        };
        let wall = |zoned: Zoned| {
            let nanos = zoned.timestamp().as_nanosecond();
            Wall::from_nanos(u64::try_from(nanos).unwrap_or(0))
        };
        Edges {
            start: wall(start),
            end: wall(end),
            next_end: wall(next_end),
        }
    }
}

/// The last edge up to `now`, and the two after it: a walk over days.
fn anchored(now: &Zoned, anchor: Anchor) -> [Zoned; 3] {
    let is_day = |date: Date, day: u8| {
        let day = i8::try_from(day).unwrap();
        date.day() == day.min(date.days_in_month())
    };
    let begins = |date: Date| match anchor {
        Anchor::Weekday(day) => date.weekday().to_monday_zero_offset() == day as i8,
        Anchor::DayOfMonth(day) => is_day(date, day),
        Anchor::DayOfYear { month, day } => {
            date.month().unsigned_abs() == month && is_day(date, day)
        }
        Anchor::UnitStart | Anchor::TimeOfDay(_) => true,
    };
    let minute = match anchor {
        Anchor::TimeOfDay(minute) => i64::from(minute),
        _ => 0,
    };
    let edge = |date: Date| {
        let time = date.at(0, 0, 0, 0) + minute.minutes();
        time.to_zoned(now.time_zone().clone()).unwrap()
    };
    let mut date = now.date().tomorrow().unwrap();
    while !begins(date) || edge(date) > *now {
        date = date.yesterday().unwrap();
    }
    let mut edges = (0..800).map(|days| date + days.days());
    let mut next = || edge(edges.by_ref().find(|date| begins(*date)).unwrap());
    [next(), next(), next()]
}

fn start_of(now: &Zoned, unit: CalendarUnit) -> Zoned {
    let down = |unit| {
        let round = ZonedRound::new()
            .smallest(unit)
            .mode(jiff::RoundMode::Floor);
        now.round(round).unwrap()
    };
    let midnight = now.start_of_day().unwrap();
    match unit {
        CalendarUnit::Second => down(Unit::Second),
        CalendarUnit::Minute => down(Unit::Minute),
        CalendarUnit::Hour => down(Unit::Hour),
        CalendarUnit::Day => midnight,
        CalendarUnit::Week => {
            let since_monday = i64::from(now.weekday().to_monday_zero_offset());
            midnight.checked_sub(since_monday.days()).unwrap()
        }
        CalendarUnit::Month => midnight.first_of_month().unwrap(),
        CalendarUnit::Year => midnight.first_of_year().unwrap(),
    }
}

fn next(start: &Zoned, unit: CalendarUnit) -> Zoned {
    let span = match unit {
        CalendarUnit::Second => 1.second(),
        CalendarUnit::Minute => 1.minute(),
        CalendarUnit::Hour => 1.hour(),
        CalendarUnit::Day => 1.day(),
        CalendarUnit::Week => 1.week(),
        CalendarUnit::Month => 1.month(),
        CalendarUnit::Year => 1.year(),
    };
    start.checked_add(span).unwrap()
}

/// The charges of a set with their states.
fn entries<'a, 'r>(set: &'a LimitSet<'r>, states: &'a mut [State]) -> Vec<Entry<'a, 'r>> {
    let charges = set.charges().iter().zip(states);
    let entries = charges.map(|(charge, state)| Entry { charge, state });
    entries.collect()
}
