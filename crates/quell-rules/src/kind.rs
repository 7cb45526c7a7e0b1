//! Kind: the algorithms by the names that a rules file gives them.

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

/// Both buckets.
pub(crate) const BUCKETS: &[Kind] = &[Kind::TokenBucket, Kind::LeakyBucket];

/// All three windows.
pub(crate) const WINDOWS: &[Kind] = &[Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog];

/// What counts use over time; the other kind counts what is held.
pub(crate) const RATES: &[Kind] = &[
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

/// Permits.
pub(crate) const PERMITS: &[Kind] = &[Kind::Concurrency];

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::Concurrency,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether its length is said as a window.
    pub(crate) fn is_window(self) -> bool {
        WINDOWS.contains(&self)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        let names = Self::ALL.map(Self::name);
        Err(crate::hint::no_such("algorithm", text, &names))
    }
}
