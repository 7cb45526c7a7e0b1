//! Kind: the algorithms by their names in a rules file.

/// An algorithm's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency,
}

/// Each algorithm with its name.
const NAMES: [(&str, Kind); 6] = [
    ("token_bucket", Kind::TokenBucket),
    ("leaky_bucket", Kind::LeakyBucket),
    ("fixed_window", Kind::FixedWindow),
    ("sliding_window", Kind::SlidingWindow),
    ("sliding_log", Kind::SlidingLog),
    ("concurrency", Kind::Concurrency),
];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        let mut names = NAMES.iter().filter(|(_, kind)| *kind == self);
        names.next().map_or("", |(name, _)| name)
    }

    /// The algorithm of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut names = NAMES.iter().filter(|(known, _)| *known == name);
        names.next().map(|(_, kind)| *kind)
    }

    /// Returns true if the length of the algorithm is given as a window.
    pub(crate) const fn is_window(self) -> bool {
        matches!(
            self,
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog
        )
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        crate::hint::one_of("algorithm", text, &NAMES)
    }
}
