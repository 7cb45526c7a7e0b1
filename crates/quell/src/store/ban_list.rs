//! Ban list: a page of the bans in force, and where the next page begins.
//!
//! Bans lie in two lists, of a shared store and of this process. A page has the longest of both, and a cursor has
//! a place in each. A place is an instant at which bans end, and how many of those that end
//! then were on a page before; so bans that begin or end meanwhile move no others out of sight.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use super::Banned;

/// A list that bans are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanSource {
    /// List of a shared store.
    Shared,
    /// List of this process.
    Memory,
}

impl BanSource {
    const ALL: [Self; 2] = [Self::Shared, Self::Memory];

    const fn index(self) -> usize {
        match self {
            Self::Shared => 0,
            Self::Memory => 1,
        }
    }
}

/// A place in a list, the bans that end last being first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BanPlace {
    /// Its beginning.
    #[default]
    Start,
    /// Behind so many of the bans that end at an instant of the list's clock.
    Behind {
        /// Instant at which the bans end.
        until: u64,
        /// Number of bans.
        count: u64,
    },
    /// Its end.
    End,
}

impl BanPlace {
    /// The place behind the next ban, which ends then.
    #[must_use]
    pub const fn behind(self, end: u64) -> Self {
        match self {
            Self::Behind { until, count } if until == end => Self::Behind {
                until,
                count: count.saturating_add(1),
            },
            _ => Self::Behind {
                until: end,
                count: 1,
            },
        }
    }
}

/// Position at which a list of bans goes on: a place in each list. Its text is for whoever asks for the
/// next page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanCursor([BanPlace; 2]);

impl BanCursor {
    /// The place in a list.
    #[must_use]
    pub const fn place(&self, source: BanSource) -> BanPlace {
        let [shared, memory] = self.0;
        match source {
            BanSource::Shared => shared,
            BanSource::Memory => memory,
        }
    }
}

impl fmt::Display for BanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, place) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("_")?;
            }
            match place {
                BanPlace::Start => f.write_str("start")?,
                BanPlace::Behind { until, count } => write!(f, "{until}-{count}")?,
                BanPlace::End => f.write_str("end")?,
            }
        }
        Ok(())
    }
}

impl FromStr for BanCursor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = |text: &str| match text {
            "start" => Some(BanPlace::Start),
            "end" => Some(BanPlace::End),
            _ => {
                let (until, count) = text.split_once('-')?;
                Some(BanPlace::Behind {
                    until: until.parse().ok()?,
                    count: count.parse().ok()?,
                })
            }
        };
        let places: Option<Vec<BanPlace>> = text.split('_').map(place).collect();
        let places = places.and_then(|places| <[BanPlace; 2]>::try_from(places).ok());
        places.map(Self).ok_or_else(|| {
            "this is no place in the list of bans: write what `next` of the page before says"
                .to_owned()
        })
    }
}

/// Request for a page of bans.
#[derive(Clone, Copy)]
pub struct BanPage<'a> {
    /// Returns true for a domain whose bans are requested.
    pub wants: &'a (dyn Fn(&str) -> bool + Send + Sync),
    /// Position at which the page begins.
    pub from: &'a BanCursor,
    /// Greatest number of bans on the page; at least 1.
    pub most: usize,
}

impl fmt::Debug for BanPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BanPage")
            .field("from", self.from)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

/// Bans that stores found for a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    found: Vec<(BanSource, Banned, BanPlace)>,
    /// Position at which each list that was read goes on, behind all that was found in it.
    read: [Option<BanPlace>; 2],
}

impl BanList {
    /// Empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next ban of a list, and the place behind it.
    pub fn push(&mut self, source: BanSource, ban: Banned, behind: BanPlace) {
        self.found.push((source, ban, behind));
    }

    /// Notes how far a list was read; [`BanPlace::End`] if there is no more.
    pub fn read_to(&mut self, source: BanSource, place: BanPlace) {
        if let Some(read) = self.read.get_mut(source.index()) {
            *read = Some(place);
        }
    }

    /// These, and those of another store.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.found.extend(other.found);
        for (read, of_other) in self.read.iter_mut().zip(other.read) {
            *read = read.or(of_other);
        }
        self
    }

    /// The bans, with what `change` makes of each.
    pub fn for_each(&mut self, change: impl FnMut(&mut Banned)) {
        self.found
            .iter_mut()
            .map(|(_, ban, _)| ban)
            .for_each(change);
    }

    /// The page, the longest ban first, and where the next one begins; `None` if this is the last one.
    #[must_use]
    pub fn into_page(mut self, page: &BanPage<'_>) -> (Vec<Banned>, Option<BanCursor>) {
        self.found.sort_by_key(|(_, ban, _)| Reverse(ban.left));
        let left_out = self.found.split_off(page.most.min(self.found.len()));
        let mut next = BanCursor([BanPlace::End; 2]);
        for (source, place) in BanSource::ALL.into_iter().zip(&mut next.0) {
            let is_of = |found: &&(BanSource, Banned, BanPlace)| found.0 == source;
            let Some(read) = self.read.get(source.index()).copied().flatten() else {
                continue;
            };
            *place = match left_out.iter().any(|found| found.0 == source) {
                false => read,
                true => { self.found.iter().rfind(is_of) }
                    .map_or_else(|| page.from.place(source), |(.., behind)| *behind),
            };
        }
        let has_more = next.0.iter().any(|place| *place != BanPlace::End);
        let bans = self.found.into_iter().map(|(_, ban, _)| ban);
        (bans.collect(), has_more.then_some(next))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_core::key::KeyName;

    use super::*;

    fn ban(name: &str, seconds: u64) -> Banned {
        Banned {
            key: KeyName {
                domain: name.to_owned(),
                rule: String::new(),
                values: Vec::new(),
            },
            left: Duration::from_secs(seconds),
            reason: None,
            cause: None,
        }
    }

    #[test]
    fn a_page_has_the_longest_and_the_next_one_what_was_left_out() {
        let from = BanCursor::default();
        let page = BanPage {
            wants: &|_| true,
            from: &from,
            most: 2,
        };
        let behind = |until, count| BanPlace::Behind { until, count };
        let mut shared = BanList::new();
        shared.push(BanSource::Shared, ban("a", 9), behind(9, 1));
        shared.push(BanSource::Shared, ban("b", 5), behind(5, 1));
        shared.read_to(BanSource::Shared, behind(5, 1));
        let mut own = BanList::new();
        own.push(BanSource::Memory, ban("c", 7), behind(70, 1));
        own.push(BanSource::Memory, ban("d", 6), behind(60, 1));
        own.read_to(BanSource::Memory, BanPlace::End);
        let (bans, next) = shared.join(own).into_page(&page);
        let names: Vec<_> = bans.iter().map(|ban| &*ban.key.domain).collect();
        assert_eq!(names, ["a", "c"]);
        let next = next.unwrap();
        assert_eq!(next.to_string(), "9-1_70-1");
        assert_eq!(next.to_string().parse(), Ok(next));
        let (bans, next) = BanList::new().into_page(&page);
        assert!(bans.is_empty() && next.is_none());
        for wrong in ["", "start", "1-_end_end", "end_end_end_end", "-1-1_end_end"] {
            assert!(wrong.parse::<BanCursor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bans_that_end_together_are_counted() {
        let place = BanPlace::Start.behind(5).behind(5).behind(3);
        assert_eq!(place, BanPlace::Behind { until: 3, count: 1 });
        assert_eq!(
            BanPlace::Start.behind(5).behind(5),
            BanPlace::Behind { until: 5, count: 2 }
        );
    }
}
