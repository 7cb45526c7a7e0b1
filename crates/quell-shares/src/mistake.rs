//! Deliberate mistakes, to check that the simulator would notice them.
//!
//! Compiled for the simulator only. A coordinator or member makes none unless it is told to.

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

            /// Whether the mistake never lets a member use too much, but gives some too little or
            /// too late.
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
                        | Self::MoreToTheLouder
                        | Self::NeverReturned
                        | Self::OldestOccupant
                        | Self::StepDownForHigher
                )
            }

            /// What is done wrong.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$name => $about,)* }
            }
        }
    };
}
mistakes! {
    OverwriteUnacked "overwrite-unacked" "A new version replaces those that are not yet acknowledged.",
    ForgetLedger "forget-ledger" "A new leader grants as if no member held anything.",
    FallBackAtOnce "fall-back-at-once" "A member takes its base when its lease ends, promise or not.",
    AcceptReordered "accept-reordered" "A member obeys an answer that is older than the one it has.",
    LearnUnfenced "learn-unfenced" "A leader believes a report sent before the fence.",
    PromiseFromArrival "promise-from-arrival" "The promise counts from the arrival of any report.",
    AcceptStaleReports "accept-stale-reports" "A coordinator accepts reports that were overtaken, even those of an earlier start.",
    LeaseFromReceipt "lease-from-receipt" "A lease counts from the receipt of the answer.",
    NoDriftMargin "no-drift-margin" "Bounds have no margin for drift (clocks drift by 2 %, as declared).",
    ForgetMerged "forget-merged" "A new leader counts silent members by the plans that are kept apart only.",
    IncarnationIsProof "incarnation-is-proof" "A process that started recently is assumed to hold nothing.",
    ShortLearning "short-learning" "A new leader waits only a third of a lease for silent members.",
    GrantBeforeQuiet "grant-before-quiet" "A new leader does not wait for the old one's time to be over.",
    AckBeforeSeal "ack-before-seal" "A member acknowledges before the old schedule is out of use.",
    FillOnGrant "fill-on-grant" "A bucket is filled when a larger right arrives.",
    LeaveAnyIncarnation "leave-any-incarnation" "A leave frees a seat even if it is of another start.",
    DecideAfterDeadline "decide-after-deadline" "A leader continues after its time is over.",
    LendWholeBase "lend-whole-base" "A base is lent for longer than its owner promised.",
    GrowBeforeShrink "grow-before-shrink" "Targets are granted without regard to other members.",
    PushExtends "push-extends" "A push gives a lease its full time again.",
    BaseBeforeRoom "base-before-room" "A base of a new plan starts before the old ones are given up.",
    RestartFull "restart-full" "A process starts with a full bucket.",
    LeaveBeforeZero "leave-before-zero" "A member says it left while it still admits.",
    ForgetOldPlans "forget-old-plans" "A new leader counts silent members by the newest plan only.",
    BurstAtLeastOne "burst-at-least-one" "A burst is proportional to the rate, but at least one call.",
    IdNotExclusive "id-not-exclusive" "A second process with an id takes over from a living one.",
    GapOutlastsBase "gap-outlasts-base" "A promise received late outlasts the base that follows it.",
    ObeyOldJoin "obey-old-join" "A join is obeyed although a later process has joined since.",
    PushRaisesGap "push-raises-gap" "A push also raises the right after the lease.",
    GapUnchecked "gap-unchecked" "The right after a lease is checked only until the lease ends, although other leases are longer.",
    TrustBound "trust-bound" "The most that a member may hold is taken for what it has for certain, and so left to it.",
    FloorTooEarly "floor-too-early" "A floor follows a base that has ended although the promise has not.",
    ClockStoodStill "clock-stood-still" "A pause that the monotonic clock does not show is ignored.",
    CountPlainly "count-plainly" "Rights of another plan are counted as they are, not as the same part of the limit.",
    AckAnyEpoch "ack-any-epoch" "A leader takes an acknowledgement of another leader's version for one of its own.",
    FenceNotKept "fence-not-kept" "A member says that it is fenced and goes on obeying older leaders.",
    ToldWhileSealing "told-while-sealing" "A member says that it is fenced while an older grant is on its way into force.",
    LearnedBaseLate "learned-base-late" "A leader counts the time until a base begins from when it receives the report.",
    EndedBaseIsSure "ended-base-is-sure" "A leader leaves a member the base or floor that it had, although that ended while the leader before could give it to others.",
    HandOverStrangers "hand-over-strangers" "A leader hands over although it counts members that it has not heard among strangers.",
    HandOverGoesOn "hand-over-goes-on" "A leader continues after it handed over.",
    HandOverKept "hand-over-kept" "Every later leader believes a leader's snapshot, not only the next one.",
    NewestLeaseOnly "newest-lease-only" "A new leader waits for leases of the newest plan only.",
    PromiseNotStretched "promise-not-stretched" "A base may begin while older, longer leases last.",
    PruneEarly "prune-early" "Older plans are forgotten when all members that reported recently follow the newest.",
    IgnoreOtherBursts "ignore-other-bursts" "Bursts are divided as if no member had any of another plan.",
    DropOldVersions "drop-old-versions" "When too many versions are outstanding the oldest is forgotten.",
    PushFillsNothing "push-fills-nothing" "A push turns a lease without a rate into one with a rate.",
    RestartOnBase "restart-on-base" "A process starts on the base of its snapshot.",
    OldSnapshot "old-snapshot" "A process starts with the first snapshot ever written.",
    SeatForAll "seat-for-all" "A join is given a seat when all are taken.",
    FewerSeats "fewer-seats" "A plan may have fewer seats than there are members.",
    BaseNeverBegins "base-never-begins" "A member that is cut off stays on the right that followed its lease.",
    NoGap "no-gap" "Nothing follows a lease until the base begins.",
    HoldForAll "hold-for-all" "A learning leader also delays the bases of members that want more than they have.",
    WaitForAll "wait-for-all" "A new leader waits for silent members for ever.",
    LeaseNotRenewed "lease-not-renewed" "A leader answers, but renews no lease.",
    PushNothing "push-nothing" "A planned change waits for the next report.",
    MoreToTheLouder "more-to-the-louder" "Above its base a member is given by how much it wants, not by its weight.",
    DeregisteredGoesOn "deregistered-goes-on" "A member that was deregistered while alive continues unchanged.",
    ReuseLimitId "reuse-limit-id" "A limit that is added again gets the number that it had before.",
    ForgetWeight "forget-weight" "A new leader counts silent members by their new weight only.",
    ReturnAtHold "return-at-hold" "A silent member's seat is given back after F, although it keeps its floor.",
    FloorNeverEnds "floor-never-ends" "A member keeps its floor although its seat was given back.",
    DrainAtOnce "drain-at-once" "The seat of a drained member is free before it has given up what it had.",
    ReturnUnheard "return-unheard" "The seat of a drained member is free although it was not heard since a restore.",
    CountStagedPlainly "count-staged-plainly" "Rights under a plan that is being rolled out are counted as they are, not as the same part of the limit.",
    NeverReturned "never-returned" "The seats of silent members are never given back, whatever the plan says.",
    OldestOccupant "oldest-occupant" "A member that joins believes the highest incarnation that it heard of, even if the store went back.",
    StepDownForHigher "step-down-for-higher" "A leader steps down whenever a member knows a higher number.",
    IgnoreProof "ignore-proof" "A leader goes on although members know more than the store.",
    GoesOnWhenRaised "goes-on-when-raised" "A leader goes on although the generation was raised.",
    HandOverOfAnyGeneration "hand-over-of-any-generation" "A leader believes a snapshot of another generation.",
    ForgetStrangers "forget-strangers" "After a restore nothing is set aside for members that the record does not know.",
    StrangersFall "strangers-fall" "After a restore a tenth of the limit is set aside when a member has been silent for F.",
    StrangersHaveNoLease "strangers-have-no-lease" "After a restore grants begin before all older leases are over.",
    KnownLeasesOnly "known-leases-only" "After a restore only leases of plans that the record knows are waited for.",
    LineFallsAtOnce "line-falls-at-once" "A view says that members use at most the limit in force, although some have parts of an older, larger one.",
    DriftBeyondBound "drift-beyond-bound" "Clocks drift twenty times as fast as assumed.",
}
