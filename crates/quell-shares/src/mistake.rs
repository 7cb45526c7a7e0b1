//! Mistakes that the simulator makes on purpose, to see that it would notice.
//!
//! Compiled for the simulator only. A coordinator or member has none unless it is given one.

macro_rules! mistakes {
    ($($name:ident $text:literal $about:literal,)*) => {
        /// A deliberate mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mistake {
            $(#[doc = $about] $name,)*
        }

        impl Mistake {
            /// Every mistake.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether nobody ever uses too much for it, but somebody too little or too late.
            #[must_use]
            pub const fn only_withholds(self) -> bool {
                matches!(
                    self,
                    Self::BaseNeverBegins
                        | Self::NoGap
                        | Self::HoldForAll
                        | Self::WaitForAll
                        | Self::LeaseNotRenewed
                        | Self::PushNothing
                        | Self::PlanShortened
                )
            }

            /// What is done wrongly.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$name => $about,)* }
            }
        }
    };
}
mistakes! {
    OverwriteUnacked "overwrite-unacked" "A version that is sent replaces those not acknowledged.",
    ForgetLedger "forget-ledger" "A new leader grants as if nobody held anything.",
    FallBackAtOnce "fall-back-at-once" "A member takes its base when its lease ends, promise or not.",
    AcceptReordered "accept-reordered" "A member takes an answer that is older than what it has.",
    LearnUnfenced "learn-unfenced" "A leader believes a report sent before the fence.",
    PromiseFromArrival "promise-from-arrival" "The promise counts from the arrival of any report.",
    AcceptStaleReports "accept-stale-reports" "A coordinator takes reports that were overtaken, also those of an earlier start.",
    LeaseFromReceipt "lease-from-receipt" "A lease counts from the receipt of the answer.",
    NoDriftMargin "no-drift-margin" "Bounds have no margin for drift (clocks drift by 2 %, as declared).",
    IncarnationIsProof "incarnation-is-proof" "A process that started lately is taken to hold nothing.",
    ShortLearning "short-learning" "A new leader waits a third of a lease for the silent.",
    GrantBeforeQuiet "grant-before-quiet" "A new leader does not wait for the old one's time to be over.",
    AckBeforeSeal "ack-before-seal" "A member acknowledges before the old schedule is out of use.",
    FillOnGrant "fill-on-grant" "A bucket is filled when a larger right arrives.",
    LeaveAnyIncarnation "leave-any-incarnation" "A leave frees a seat whatever start it speaks for.",
    DecideAfterDeadline "decide-after-deadline" "A leader goes on when its time is over.",
    LendWholeBase "lend-whole-base" "A base is lent for longer than its owner promised.",
    GrowBeforeShrink "grow-before-shrink" "Targets are granted without a look at the others.",
    PushExtends "push-extends" "A push gives a lease its full time again.",
    BaseBeforeRoom "base-before-room" "A base of a new plan starts before the old ones are given up.",
    RestartFull "restart-full" "A process starts with a full bucket.",
    LeaveBeforeZero "leave-before-zero" "A member says it left while it still admits.",
    ForgetOldPlans "forget-old-plans" "A new leader counts the silent by the newest plan only.",
    BurstAtLeastOne "burst-at-least-one" "A burst is the rate's part, but at least one call.",
    IdNotExclusive "id-not-exclusive" "A second process with an id takes over from a living one.",
    GapOutlastsBase "gap-outlasts-base" "A promise received late lasts longer than the base it is a part of.",
    ObeyOldJoin "obey-old-join" "A join that was overtaken by that of a later process is obeyed.",
    PushRaisesGap "push-raises-gap" "A push raises what holds after the lease as well.",
    GapUnchecked "gap-unchecked" "What holds after a lease is checked no further than the lease, though others are longer.",
    TrustBound "trust-bound" "What a member may hold at the most is taken for what it surely has, and so left to it.",
    FloorTooEarly "floor-too-early" "A floor follows a base that is over, though the promise is not.",
    ClockStoodStill "clock-stood-still" "A pause that the clock of durations does not show is ignored.",
    CountPlainly "count-plainly" "What members have of another plan is counted as it is, not as the same part of the limit.",
    AckAnyEpoch "ack-any-epoch" "An acknowledgement of another leader's version is taken for one of the own.",
    FenceNotKept "fence-not-kept" "A member says that it is fenced and goes on obeying older leaders.",
    ToldWhileSealing "told-while-sealing" "A member says that it is fenced while an older grant is on its way into force.",
    LearnedBaseLate "learned-base-late" "A leader counts what is left until a base begins from when it hears of it.",
    HandOverGoesOn "hand-over-goes-on" "A leader goes on after it handed over.",
    HandOverKept "hand-over-kept" "What a leader left is believed by every later one.",
    NewestLeaseOnly "newest-lease-only" "A new leader waits for leases of the newest plan only.",
    PromiseNotStretched "promise-not-stretched" "A base may begin while older, longer leases last.",
    PruneEarly "prune-early" "Older plans are forgotten when all follow the newest that were heard lately.",
    IgnoreOtherBursts "ignore-other-bursts" "Bursts are divided as if nobody had any of another plan.",
    DropOldVersions "drop-old-versions" "When too many versions are outstanding the oldest is forgotten.",
    PushFillsNothing "push-fills-nothing" "A push turns a lease of nothing into one of something.",
    RestartOnBase "restart-on-base" "A process starts on the base of its snapshot.",
    OldSnapshot "old-snapshot" "A process starts with the first snapshot that was ever written.",
    SeatForAll "seat-for-all" "A join is given a seat when all are taken.",
    FewerSeats "fewer-seats" "A plan may have fewer seats than there are members.",
    BaseNeverBegins "base-never-begins" "A member that is cut off stays on what followed its lease.",
    NoGap "no-gap" "Nothing follows a lease until the base begins.",
    HoldForAll "hold-for-all" "A leader that is learning holds up the bases of those too who want more than they have.",
    WaitForAll "wait-for-all" "A new leader waits for the silent for ever.",
    LeaseNotRenewed "lease-not-renewed" "A leader answers, and renews no lease.",
    PushNothing "push-nothing" "What is planned waits for the next report.",
    PlanShortened "plan-shortened" "A plan may have fewer limits than the one before.",
    DeregisteredGoesOn "deregistered-goes-on" "A member that was deregistered while it lived goes on as it was.",
    DriftBeyondBound "drift-beyond-bound" "Clocks drift twenty times as fast as assumed.",
}
