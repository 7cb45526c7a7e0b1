//! Where calendar windows begin: the edges against an oracle that walks days one by one, and days that are unusual.

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::{BoxedStrategy, ProptestConfig, Strategy};
use proptest::{prop_oneof, proptest, sample};
use quell::Limit;
use quell::calendar::{CalendarEdges, Edges, SystemCalendar};
use quell::limit::{self, Anchor, Calendar, CalendarUnit};
use quell_core::time::Wall;

const SECOND: i128 = 1_000_000_000;

/// Zones that skip a day, midnight, half an hour or two hours, repeat midnight, or are far from UTC.
const ZONES: [&str; 16] = [
    "UTC",
    "Europe/Berlin",
    "Europe/Lisbon",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Africa/Cairo",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kwajalein",
];

fn wall(timestamp: Timestamp) -> Wall {
    let nanos = timestamp.as_nanosecond().max(0);
    Wall::from_nanos(u64::try_from(nanos).unwrap())
}

fn timestamp(wall: Wall) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(wall.as_nanos())).unwrap()
}

/// Returns true if a window begins on this date.
fn begins_on(calendar: &Calendar, date: Date) -> bool {
    // The last day of a month stands for those that it does not have.
    let is_day = |day: u8| {
        let day = i8::try_from(day).unwrap();
        date.day() == day || (date.day() < day && date.tomorrow().unwrap().day() == 1)
    };
    match (calendar.unit, calendar.anchor) {
        (CalendarUnit::Day, _) => true,
        (CalendarUnit::Week, Anchor::Weekday(day)) => {
            let english = jiff::fmt::strtime::format("%A", date).unwrap();
            english.eq_ignore_ascii_case(day.name())
        }
        (CalendarUnit::Week, _) => date.weekday() == Weekday::Monday,
        (CalendarUnit::Month, Anchor::DayOfMonth(day)) => is_day(day),
        (CalendarUnit::Month, _) => date.day() == 1,
        (CalendarUnit::Year, Anchor::DayOfYear { month, day }) => {
            date.month().unsigned_abs() == month && is_day(day)
        }
        (CalendarUnit::Year, _) => (date.month(), date.day()) == (1, 1),
        other => unreachable!("{other:?} is shorter than a day"),
    }
}

/// When a clock of the zone first shows `local`; if it skips that, when it would if it were not yet set forward.
fn first_shown(local: DateTime, zone: &TimeZone) -> Timestamp {
    let as_utc = local.to_zoned(TimeZone::UTC).unwrap().timestamp();
    let hours = (-30..=30_i64).map(|hours| as_utc + hours.hours());
    let offsets: Vec<Offset> = hours.map(|instant| zone.to_offset(instant)).collect();
    let at = |offset: &Offset| as_utc - i64::from(offset.seconds()).seconds();
    let shown = offsets
        .iter()
        .filter(|offset| zone.to_offset(at(offset)) == **offset);
    shown.map(at).min().unwrap_or_else(|| {
        let before = zone.to_offset(at(offsets.iter().max().unwrap()));
        at(&before)
    })
}

/// All edges in the dates around `instant`, in order.
fn edges_around(calendar: &Calendar, instant: Timestamp) -> Vec<Timestamp> {
    let zone = TimeZone::get(&calendar.zone).unwrap();
    let days = match calendar.unit {
        CalendarUnit::Day => 4,
        CalendarUnit::Week => 18,
        CalendarUnit::Month => 66,
        _ => 740,
    };
    let minute = match calendar.anchor {
        Anchor::TimeOfDay(minute) => minute,
        _ => 0,
    };
    let hour = i8::try_from(minute / 60).unwrap();
    let minute = i8::try_from(minute % 60).unwrap();
    let today = instant.to_zoned(zone.clone()).date();
    let dates = (-days..=days).map(|days| today + days.days());
    let dates = dates.filter(|date| begins_on(calendar, *date));
    let edges = dates.map(|date| first_shown(date.at(hour, minute, 0, 0), &zone));
    let mut edges: Vec<_> = edges.collect();
    edges.sort_unstable();
    edges
}

fn expected(calendar: &Calendar, instant: Timestamp) -> Edges {
    let edges = edges_around(calendar, instant);
    let after = |instant: Timestamp| *edges.iter().find(|edge| **edge > instant).unwrap();
    let start = *edges.iter().rfind(|edge| **edge <= instant).unwrap();
    let end = after(instant);
    Edges {
        start: wall(start),
        end: wall(end),
        next_end: wall(after(end)),
    }
}

fn anchors() -> BoxedStrategy<(CalendarUnit, Anchor)> {
    let weekdays = sample::select(limit::Weekday::ALL.to_vec());
    let year = (1..=12_u8, 1..=31_u8).prop_map(|(month, day)| {
        let longest = match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let day = day.min(longest);
        (CalendarUnit::Year, Anchor::DayOfYear { month, day })
    });
    let units = [
        CalendarUnit::Day,
        CalendarUnit::Week,
        CalendarUnit::Month,
        CalendarUnit::Year,
    ];
    prop_oneof![
        1 => sample::select(units.to_vec()).prop_map(|unit| (unit, Anchor::UnitStart)),
        3 => (0..1_440_u16).prop_map(|minute| (CalendarUnit::Day, Anchor::TimeOfDay(minute))),
        // Times at which clocks change.
        1 => (0..12_u16).prop_map(|half| (CalendarUnit::Day, Anchor::TimeOfDay(half * 30 % 1_440))),
        1 => weekdays.prop_map(|day| (CalendarUnit::Week, Anchor::Weekday(day))),
        3 => (1..=31_u8).prop_map(|day| (CalendarUnit::Month, Anchor::DayOfMonth(day))),
        2 => year,
    ]
    .boxed()
}

fn zones() -> BoxedStrategy<String> {
    let all = jiff::tz::db().available().map(|name| name.to_string());
    let all: Vec<String> = all.filter(|name| TimeZone::get(name).is_ok()).collect();
    let unusual: Vec<String> = ZONES.map(str::to_owned).to_vec();
    prop_oneof![2 => sample::select(unusual), 1 => sample::select(all)].boxed()
}

/// An instant of 1970 to 2100; often within a day of one at which clocks of the zone change.
fn instants() -> BoxedStrategy<(i64, bool, i64)> {
    let seconds = 0..4_133_980_800_i64;
    (seconds, proptest::bool::ANY, -90_000..90_000_i64).boxed()
}

fn instant(zone: &str, (seconds, is_near, by): (i64, bool, i64)) -> Timestamp {
    let random = Timestamp::from_second(seconds).unwrap();
    if !is_near {
        return random;
    }
    let zone = TimeZone::get(zone).unwrap();
    let change = zone.following(random).next().map(|next| next.timestamp());
    let near = change.filter(|change| change.as_second() < 4_133_980_800);
    let near = near.unwrap_or(random).as_second() + by;
    Timestamp::from_second(near.max(0)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Every instant lies in one window, whose edges are those of the definition.
    #[test]
    fn edges_are_those_of_a_walk_day_by_day(
        (unit, anchor) in anchors(), zone in zones(), at in instants()
    ) {
        let at = instant(&zone, at);
        let limit = Limit::calendar_window(1, unit, &zone).anchor(anchor).build().unwrap();
        let calendar = limit.calendar().unwrap();
        let edges = |at: Wall| SystemCalendar::default().edges(calendar, at);
        let found = edges(wall(at));
        assert_eq!(found, expected(calendar, at), "{calendar:?} at {at}");
        assert!(found.start <= wall(at) && wall(at) < found.end && found.end < found.next_end);
        // The first and the last nanosecond of the window, and the one after it.
        let last = Wall::from_nanos(found.end.as_nanos() - 1);
        assert_eq!((edges(found.start), edges(last)), (found, found), "{calendar:?} at {at}");
        let next = edges(found.end);
        assert_eq!((next.start, next.end), (found.end, found.next_end), "{calendar:?} at {at}");
    }
}

/// The edges from the window around `at` on, as local times.
fn walk(unit: CalendarUnit, zone: &str, anchor: Anchor, at: &str, count: usize) -> Vec<String> {
    let limit = Limit::calendar_window(1, unit, zone).anchor(anchor).build();
    let limit = limit.unwrap();
    let calendar = SystemCalendar::default();
    let local = TimeZone::get(zone).unwrap();
    let at: Timestamp = at.parse().unwrap();
    let mut edge = calendar.edges(limit.calendar().unwrap(), wall(at)).start;
    let mut shown = Vec::new();
    for _ in 0..count {
        let zoned = timestamp(edge).to_zoned(local.clone());
        shown.push(zoned.strftime("%Y-%m-%d %H:%M").to_string());
        edge = calendar.edges(limit.calendar().unwrap(), edge).end;
    }
    shown
}

fn months(day: u8, at: &str, count: usize) -> Vec<String> {
    let anchor = Anchor::DayOfMonth(day);
    walk(CalendarUnit::Month, "Europe/Berlin", anchor, at, count)
}

/// How long the window around `at` is, in minutes.
fn minutes(unit: CalendarUnit, zone: &str, anchor: Anchor, at: &str) -> i128 {
    let limit = Limit::calendar_window(1, unit, zone).anchor(anchor).build();
    let at: Timestamp = at.parse().unwrap();
    let limit = limit.unwrap();
    let edges = SystemCalendar::default().edges(limit.calendar().unwrap(), wall(at));
    let [start, end] = [edges.start, edges.end].map(|edge| i128::from(edge.as_nanos()));
    (end - start) / (60 * SECOND)
}

#[test]
fn months_from_the_31st_never_drift() {
    let days = |shown: &[String]| {
        let days = shown.iter().map(|edge| edge[5..10].to_owned());
        days.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        days(&months(31, "2026-01-31T12:00:00Z", 13)),
        "01-31 02-28 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31 01-31"
    );
    assert_eq!(
        days(&months(31, "2028-01-31T12:00:00Z", 3)),
        "01-31 02-29 03-31"
    );
    assert_eq!(
        days(&months(29, "2026-01-31T12:00:00Z", 3)),
        "01-29 02-28 03-29"
    );
    // The 30th of January is not yet the window of the 31st.
    assert_eq!(days(&months(31, "2026-01-30T12:00:00Z", 2)), "12-31 01-31");
}

#[test]
fn years_from_a_leap_day_begin_on_february_28() {
    let anchor = Anchor::DayOfYear { month: 2, day: 29 };
    assert_eq!(
        walk(CalendarUnit::Year, "UTC", anchor, "2027-12-01T00:00:00Z", 4),
        [
            "2027-02-28 00:00",
            "2028-02-29 00:00",
            "2029-02-28 00:00",
            "2030-02-28 00:00"
        ]
    );
}

#[test]
fn weeks_begin_on_the_anchor() {
    let anchor = Anchor::Weekday(limit::Weekday::Thursday);
    assert_eq!(
        walk(
            CalendarUnit::Week,
            "Europe/Berlin",
            anchor,
            "2026-11-26T22:59:59Z",
            2
        ),
        ["2026-11-26 00:00", "2026-12-03 00:00"]
    );
    assert_eq!(
        walk(
            CalendarUnit::Week,
            "Europe/Berlin",
            anchor,
            "2026-11-25T22:59:59Z",
            1
        ),
        ["2026-11-19 00:00"]
    );
}

#[test]
fn days_from_an_hour_have_23_and_25_hours() {
    let berlin = |minute, at| {
        let anchor = Anchor::TimeOfDay(minute);
        let edges = walk(CalendarUnit::Day, "Europe/Berlin", anchor, at, 3);
        let length = minutes(CalendarUnit::Day, "Europe/Berlin", anchor, at);
        (edges, length)
    };
    let expected = |edges: [&str; 3], length| (edges.map(str::to_owned).to_vec(), length);
    // The day in which clocks change begins on the evening before.
    let evening = 20 * 60;
    assert_eq!(
        berlin(evening, "2026-03-28T23:00:00Z"),
        expected(
            ["2026-03-28 20:00", "2026-03-29 20:00", "2026-03-30 20:00"],
            23 * 60
        )
    );
    assert_eq!(
        berlin(evening, "2026-10-24T23:00:00Z"),
        expected(
            ["2026-10-24 20:00", "2026-10-25 20:00", "2026-10-26 20:00"],
            25 * 60
        )
    );
    // 02:30 is skipped, and comes twice.
    let night = 2 * 60 + 30;
    assert_eq!(
        berlin(night, "2026-03-28T12:00:00Z"),
        expected(
            ["2026-03-28 02:30", "2026-03-29 03:30", "2026-03-30 02:30"],
            24 * 60
        )
    );
    assert_eq!(berlin(night, "2026-03-29T12:00:00Z").1, 23 * 60);
    assert_eq!(berlin(night, "2026-10-24T12:00:00Z").1, 24 * 60);
    assert_eq!(berlin(night, "2026-10-25T00:30:00Z").1, 25 * 60);
}

/// In Sao Paulo clocks went forward at midnight.
#[test]
fn a_day_whose_midnight_is_skipped_begins_at_one() {
    let day = |anchor| {
        let zone = "America/Sao_Paulo";
        walk(CalendarUnit::Day, zone, anchor, "2018-11-03T12:00:00Z", 3)
    };
    assert_eq!(
        day(Anchor::UnitStart),
        ["2018-11-03 00:00", "2018-11-04 01:00", "2018-11-05 00:00"]
    );
    assert_eq!(
        day(Anchor::TimeOfDay(30)),
        ["2018-11-03 00:30", "2018-11-04 01:30", "2018-11-05 00:30"]
    );
    let month = Anchor::DayOfMonth(4);
    assert_eq!(
        walk(
            CalendarUnit::Month,
            "America/Sao_Paulo",
            month,
            "2018-11-04T12:00:00Z",
            2
        ),
        ["2018-11-04 01:00", "2018-12-04 00:00"]
    );
}

/// Samoa had no December 30, 2011.
#[test]
fn a_date_that_is_skipped_has_no_window_of_its_own() {
    let apia = |unit, anchor, count| {
        let at = "2011-12-29T20:00:00Z";
        walk(unit, "Pacific/Apia", anchor, at, count)
    };
    assert_eq!(
        apia(CalendarUnit::Day, Anchor::UnitStart, 3),
        ["2011-12-29 00:00", "2011-12-31 00:00", "2012-01-01 00:00"]
    );
    assert_eq!(
        apia(CalendarUnit::Day, Anchor::TimeOfDay(8 * 60), 3),
        ["2011-12-29 08:00", "2011-12-31 08:00", "2012-01-01 08:00"]
    );
    assert_eq!(
        apia(CalendarUnit::Month, Anchor::DayOfMonth(30), 3),
        ["2011-11-30 00:00", "2011-12-31 00:00", "2012-01-30 00:00"]
    );
    let friday = Anchor::Weekday(limit::Weekday::Friday);
    assert_eq!(
        apia(CalendarUnit::Week, friday, 3),
        ["2011-12-23 00:00", "2011-12-31 00:00", "2012-01-06 00:00"]
    );
}
