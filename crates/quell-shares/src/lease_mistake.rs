//! Deliberate mistakes of a lease, to check that the simulator would notice them.

/// The mistakes of one state machine, with their names.
macro_rules! mistakes {
    ($(#[doc = $of:literal])? $type:ident: $($name:ident $text:literal $about:literal,)*) => {
        $(#[doc = $of])?
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $about] $name,)*
        }

        impl $type {
            /// Every mistake.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}
pub(crate) use mistakes;

mistakes! {
    /// A deliberate mistake of a lease.
    LeaseMistake:
    NoCap "no-cap" "A node takes as much as it wants, whatever it may hold.",
    SpendTwice "spend-twice" "A unit that was used is not taken from the grant.",
    LostIsGranted "lost-is-granted" "A grant whose answer was lost is used.",
    AnyAnswer "any-answer" "A late answer is taken for that of the present request.",
    NeverExpires "never-expires" "A grant is used after its time.",
    LeaseFromReceipt "lease-from-receipt" "A grant lasts from when its answer came.",
    OutlivesWindow "outlives-window" "A grant of a fixed window is used after the window has ended.",
    OldReading "old-reading" "A call that was paused uses a grant of a fixed window after the window has ended.",
    ReturnKeepsUnits "return-keeps-units" "Units that were given back are used as well.",
    ForgetsReturns "forgets-returns" "Units on their way back do not count as held.",
    LateReturn "late-return" "The store takes units back after their grant is over.",
    NoPause "no-pause" "The store is asked again at once although it is running dry.",
    NotGuided "not-guided" "A node takes all that the store has left, if it wants as much.",
}
