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
}

/// Both buckets.
pub(crate) const BUCKETS: &[Kind] = &[Kind::TokenBucket, Kind::LeakyBucket];

/// All three windows.
pub(crate) const WINDOWS: &[Kind] = &[Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog];

/// An algorithm of a later version.
const LATER: &str = "concurrency";

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
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
        if text == LATER {
            return Err(format!(
                "`{LATER}` is not available yet: leave the rule out"
            ));
        }
        let names = Self::ALL.map(Self::name);
        Err(crate::hint::no_such("algorithm", text, &names))
    }
}
