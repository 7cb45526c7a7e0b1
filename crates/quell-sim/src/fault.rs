//! Fault: what breaks and when, with a count of each fault.

use quell_shares::plan::{Fallback, Plan, Sizing, Stage};

/// A fault or a change that the simulation can inject. Fields without a name are indices and
/// nanoseconds.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A node's process dies.
    KillNode(usize),
    /// A node's process starts, if none runs.
    StartNode(usize),
    /// A node does nothing for this long.
    PauseNode(usize, u64),
    /// A node's agent does nothing for this long; its callers are still served.
    StallNode(usize, u64),
    /// A node and its clock of durations are stopped for this long.
    StopNode(usize, u64),
    /// A stopped node continues, if its process is still the same.
    WakeNode(usize, u32, u64),
    /// A node leaves in an orderly way.
    LeaveNode(usize),
    /// An operator declares that a dead node will not come back.
    Deregister(usize),
    /// An operator declares this by mistake of a node that is alive.
    Mistaken(usize),
    /// An orchestrator says that a dead node's process is dead.
    Fence(usize),
    /// An operator drains a node.
    Drain(usize),
    /// An operator gives a node another weight.
    Weigh(usize, u32),
    /// A node names another group when it starts next, or none.
    Regroup(usize),
    /// An operator gives a changed plan to some nodes only.
    RollOut(Change, Stage),
    /// Or to more of them.
    Advance(Stage),
    /// Or to all.
    Complete,
    /// Or takes it back.
    TakeBack,
    /// Messages between a node and a coordinator are lost, in one direction or both.
    Cut {
        /// Number of the node.
        node: usize,
        /// Number of the coordinator.
        chair: usize,
        /// Requests are lost.
        up: bool,
        /// Answers are lost.
        down: bool,
        /// For how long.
        lasts: u64,
    },
    /// A coordinator's process dies.
    KillChair(usize),
    /// A coordinator's process starts, if none runs.
    StartChair(usize),
    /// A coordinator does nothing for this long.
    PauseChair(usize, u64),
    /// A coordinator and its clock of durations are stopped for this long.
    StopChair(usize, u64),
    /// A stopped coordinator continues.
    WakeChair(usize, u32, u64),
    /// Messages between a coordinator and the store are lost for this long.
    CutChair(usize, u64),
    /// The leader hands over in an orderly way.
    HandOver,
    /// The store takes the key away early.
    Revoke,
    /// The store keeps a key for this much longer.
    Linger(u64),
    /// The store does not answer anyone for this long.
    StoreDown(u64),
    /// A backup of the store is made.
    Backup,
    /// The store is restored from the backup.
    Restore {
        /// True if the store's revisions go on from a higher number.
        bump: bool,
    },
    /// An operator raises the generation.
    Raise,
    /// An operator says that there are no members that the record does not know. If some may be alive,
    /// the operator waits.
    NoStrangers,
    /// Callers of a node want this many micro-units per second of a limit.
    Demand(usize, usize, u64),
    /// The console changes the plan.
    Change(Change),
    /// Everything is repaired, and no more faults happen.
    Quiet,
}

/// Change through the console.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Sets rates and bursts to this percentage of their first values.
    Rates(u64),
    /// Sets rates and bursts to this many units, however little that is for each member; calls cost one.
    Cut(u64),
    /// Sets the lease to this many seconds, and the promise with it.
    Lease(u64),
    /// Sets the report period to this many milliseconds, and the promise with it.
    Report(u64),
    /// Sets the hold to this many seconds, but at least to the promise.
    Hold(u64),
    /// Sets what a member that is cut off may still use, for all limits.
    Fallback(Fallback),
    /// Sets the total weight to this percentage of the members' weight.
    Weight(u64),
    /// Sets the least burst to this many units.
    Least(u64),
    /// Sets the number of seats to this many more than there are members.
    Seats(u32),
    /// Sets the number of seats, even if more members than that have one.
    FewerSeats(u32),
    /// Removes the newest limit, if there are two.
    NoLimit,
    /// Sets after how many seconds beyond the hold silent members lose their seats; `None` for never.
    ReturnSeats(Option<u64>),
    /// Sets whether static shares follow the number of seats.
    Sizing(Sizing),
    /// Adds one limit, if the setup has one that is not in the plan.
    Limit,
}

/// Number of times that each fault happened.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct Counts {
    pub lost: u64,
    pub doubled: u64,
    pub pushes: u64,
    pub delayed: u64,
    pub cut: u64,
    pub slow_seals: u64,
    pub node_kills: u64,
    pub node_starts: u64,
    pub node_pauses: u64,
    pub node_stalls: u64,
    pub node_stops: u64,
    pub leaves: u64,
    pub deregistrations: u64,
    pub partitions: u64,
    pub one_way_partitions: u64,
    pub chair_kills: u64,
    pub chair_pauses: u64,
    pub chair_stops: u64,
    pub paused_leaders: u64,
    pub chair_cuts: u64,
    pub hand_overs: u64,
    pub early_revocations: u64,
    pub late_revocations: u64,
    pub store_outages: u64,
    pub plan_changes: u64,
    pub limits_added: u64,
    pub limits_removed: u64,
    pub fences: u64,
    pub drains: u64,
    pub weighings: u64,
    pub regroupings: u64,
    pub rollouts: u64,
    pub stages: u64,
    pub taken_back: u64,
    pub elections: u64,
    pub steps_down: u64,
    pub restores: u64,
    /// Not a fault: grants of which L2 was judged, under fixed and under automatic sizing.
    pub judged: [u64; 2],
    /// Not a fault: how often a leader said that the store went back.
    pub alarms: u64,
    /// Every plan that was ever in force.
    pub plans: Vec<Plan>,
}

impl Counts {
    /// Each count with its name.
    #[must_use]
    pub fn list(&self) -> [(&'static str, u64); 39] {
        [
            ("messages lost", self.lost),
            ("messages doubled", self.doubled),
            ("pushes", self.pushes),
            ("messages delayed", self.delayed),
            ("messages cut off", self.cut),
            ("slow seals", self.slow_seals),
            ("node kills", self.node_kills),
            ("node starts", self.node_starts),
            ("node pauses", self.node_pauses),
            ("agent stalls", self.node_stalls),
            ("node pauses that its clock does not show", self.node_stops),
            ("leaves", self.leaves),
            ("deregistrations", self.deregistrations),
            ("partitions", self.partitions),
            ("one-way partitions", self.one_way_partitions),
            ("coordinator kills", self.chair_kills),
            ("coordinator pauses", self.chair_pauses),
            (
                "coordinator pauses that its clock does not show",
                self.chair_stops,
            ),
            ("pauses between deciding and sending", self.paused_leaders),
            ("coordinators cut off from the store", self.chair_cuts),
            ("hand-overs", self.hand_overs),
            ("early revocations", self.early_revocations),
            ("late revocations", self.late_revocations),
            ("store outages", self.store_outages),
            ("plan changes", self.plan_changes),
            ("limits added", self.limits_added),
            ("limits removed", self.limits_removed),
            ("fences", self.fences),
            ("drains", self.drains),
            ("changes of weight", self.weighings),
            ("changes of groups", self.regroupings),
            ("rollouts of a plan", self.rollouts),
            ("further stages", self.stages),
            ("rollouts taken back", self.taken_back),
            ("elections", self.elections),
            ("leaders that stepped down", self.steps_down),
            ("restores of the store from a backup", self.restores),
            ("grants judged by L2, fixed sizing", self.judged[0]),
            ("grants judged by L2, automatic sizing", self.judged[1]),
        ]
    }
}
