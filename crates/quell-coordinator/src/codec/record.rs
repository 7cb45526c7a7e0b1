//! The messages of a record, and their conversion.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use quell_core::time::saturating_nanos;
use quell_shares::generation;
use quell_shares::plan::{
    Band, Envelope, Fallback, Group, Limit, LimitId, MAX_NAME, MemberId, Membership, Name, Plan,
    Quota, Record, Restored, ReturnSeats, Rollout, Seat, Size, Sizing, Stage, TakenBack, Timing,
};

use super::CodecError;

/// The last number within a generation that is read: half of all. At a thousand writes a second it comes after 250
/// years, so a higher one is nothing that this program wrote; and numbers that follow are never too large.
const LAST: u64 = 1 << 43;

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordMessage {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(uint64, tag = "2")]
    incarnations: u64,
    #[prost(uint64, tag = "3")]
    revisions: u64,
    #[prost(uint64, tag = "4")]
    limit_ids: u64,
    #[prost(message, optional, tag = "5")]
    plan: Option<PlanMessage>,
    #[prost(message, optional, tag = "6")]
    rollout: Option<PlanMessage>,
    #[prost(uint32, optional, tag = "7")]
    stage_member: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    stage_percent: Option<u32>,
    #[prost(message, repeated, tag = "9")]
    older: Vec<PlanMessage>,
    #[prost(message, optional, tag = "10")]
    merged: Option<EnvelopeMessage>,
    #[prost(message, repeated, tag = "11")]
    seats: Vec<SeatMessage>,
    #[prost(message, optional, tag = "12")]
    restored: Option<RestoredMessage>,
    #[prost(message, optional, tag = "13")]
    band: Option<BandMessage>,
    #[prost(message, optional, tag = "14")]
    taken_back: Option<TakenBackMessage>,
}

/// Parts of a million, and a duration in nanoseconds.
#[derive(Clone, Copy, PartialEq, Message)]
struct BandMessage {
    #[prost(uint32, optional, tag = "1")]
    max_refused: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    max_degraded: Option<u32>,
    #[prost(uint64, tag = "3")]
    window: u64,
}

#[derive(Clone, PartialEq, Message)]
struct TakenBackMessage {
    #[prost(uint64, tag = "1")]
    at_ms: u64,
    #[prost(string, tag = "2")]
    why: String,
}

/// A duration in nanoseconds.
#[derive(Clone, PartialEq, Message)]
struct RestoredMessage {
    #[prost(uint64, tag = "1")]
    lease: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PlanMessage {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(message, repeated, tag = "2")]
    limits: Vec<LimitMessage>,
    #[prost(message, optional, tag = "3")]
    size: Option<SizeMessage>,
    #[prost(message, repeated, tag = "4")]
    groups: Vec<GroupMessage>,
    /// Durations are in nanoseconds.
    #[prost(uint64, tag = "5")]
    report: u64,
    #[prost(uint64, tag = "6")]
    lease: u64,
    #[prost(uint64, tag = "7")]
    promise: u64,
    #[prost(uint64, tag = "8")]
    hold: u64,
    /// Absent if seats are never given back.
    #[prost(uint64, optional, tag = "9")]
    return_seats_after: Option<u64>,
    /// The digest of a text.
    #[prost(string, optional, tag = "10")]
    rules: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct LimitMessage {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, optional, tag = "3")]
    group: Option<String>,
    #[prost(uint64, tag = "4")]
    rate: u64,
    #[prost(uint64, tag = "5")]
    burst: u64,
    #[prost(uint64, tag = "6")]
    least_burst: u64,
    #[prost(enumeration = "FallbackMessage", tag = "7")]
    fallback: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum FallbackMessage {
    Share = 0,
    Floor = 1,
    Deny = 2,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SizeMessage {
    #[prost(uint64, tag = "1")]
    total_weight: u64,
    #[prost(uint32, tag = "2")]
    seats: u32,
    #[prost(bool, tag = "3")]
    is_auto: bool,
}

#[derive(Clone, PartialEq, Message)]
struct GroupMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    size: Option<SizeMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct EnvelopeMessage {
    #[prost(message, optional, tag = "1")]
    most: Option<PlanMessage>,
    #[prost(uint64, repeated, tag = "2")]
    least_bursts: Vec<u64>,
    #[prost(uint32, tag = "3")]
    seats: u32,
    #[prost(uint32, repeated, tag = "4")]
    group_seats: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    rates: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct SeatMessage {
    #[prost(uint32, tag = "1")]
    member: u32,
    #[prost(uint64, tag = "2")]
    incarnation: u64,
    #[prost(fixed64, tag = "3")]
    nonce: u64,
    #[prost(uint32, tag = "4")]
    weight: u32,
    #[prost(bool, tag = "5")]
    based: bool,
    #[prost(message, repeated, tag = "6")]
    groups: Vec<MembershipMessage>,
    #[prost(uint32, tag = "7")]
    former_weight: u32,
    #[prost(string, repeated, tag = "8")]
    former_groups: Vec<String>,
    #[prost(bool, tag = "9")]
    draining: bool,
    #[prost(bool, tag = "10")]
    staged: bool,
}

#[derive(Clone, PartialEq, Message)]
struct MembershipMessage {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(bool, tag = "2")]
    based: bool,
}

const fn damaged(what: &'static str) -> CodecError {
    CodecError::Damaged(what)
}

fn name(text: String) -> Result<Name, CodecError> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(damaged("a name is empty or too long"));
    }
    Ok(Arc::from(text))
}

impl RecordMessage {
    pub(super) fn new(record: &Record) -> Self {
        let stage = record.rollout.as_ref().map(|rollout| rollout.stage);
        let band = record.rollout.as_ref().and_then(|rollout| rollout.band);
        Self {
            version: record.version,
            incarnations: record.incarnations,
            revisions: record.revisions,
            limit_ids: record.limit_ids,
            plan: Some(PlanMessage::new(&record.plan)),
            rollout: record.rollout.as_ref().map(|r| PlanMessage::new(&r.plan)),
            stage_member: match stage {
                Some(Stage::Member(member)) => Some(member.0),
                _ => None,
            },
            stage_percent: match stage {
                Some(Stage::Percent(percent)) => Some(u32::from(percent)),
                _ => None,
            },
            older: record.older.iter().map(PlanMessage::new).collect(),
            merged: record.merged.as_deref().map(EnvelopeMessage::new),
            seats: record.seats.iter().map(SeatMessage::new).collect(),
            restored: record.restored.map(|restored| RestoredMessage {
                lease: saturating_nanos(restored.lease),
            }),
            band: band.map(|band| BandMessage {
                max_refused: band.max_refused,
                max_degraded: band.max_degraded,
                window: saturating_nanos(band.window),
            }),
            taken_back: record.taken_back.as_ref().map(|back| TakenBackMessage {
                at_ms: back.at_ms,
                why: back.why.to_string(),
            }),
        }
    }

    pub(super) fn record(self) -> Result<Record, CodecError> {
        let plan = self.plan.ok_or(damaged("it has no plan"))?.plan()?;
        let rollout = match self.rollout {
            Some(plan) => Some(Rollout {
                plan: plan.plan()?,
                stage: stage(self.stage_member, self.stage_percent)?,
                band: self.band.map(BandMessage::band),
            }),
            None => None,
        };
        let older = self.older.into_iter().map(PlanMessage::plan);
        let merged = self.merged.map(EnvelopeMessage::envelope).transpose()?;
        let seats = self.seats.into_iter().map(SeatMessage::seat);
        let seats: Vec<Seat> = seats.collect::<Result<_, _>>()?;
        let numbers = [
            self.version,
            self.incarnations,
            self.revisions,
            self.limit_ids,
        ];
        if numbers
            .iter()
            .any(|number| generation::within(*number) > LAST)
        {
            return Err(damaged(
                "its numbers are near their end: restore a backup of the store",
            ));
        }
        // They are searched.
        if !seats.is_sorted_by(|one, other| one.member < other.member) {
            return Err(damaged("its seats are not in order"));
        }
        Ok(Record {
            version: self.version,
            incarnations: self.incarnations,
            revisions: self.revisions,
            limit_ids: self.limit_ids,
            plan,
            rollout,
            taken_back: self.taken_back.map(|back| TakenBack {
                at_ms: back.at_ms,
                why: Arc::from(back.why),
            }),
            older: older.collect::<Result<_, _>>()?,
            merged: merged.map(Box::new),
            seats,
            restored: self.restored.map(|restored| Restored {
                lease: Duration::from_nanos(restored.lease),
            }),
        })
    }
}

impl BandMessage {
    const fn band(self) -> Band {
        Band {
            max_refused: self.max_refused,
            max_degraded: self.max_degraded,
            window: Duration::from_nanos(self.window),
        }
    }
}

fn stage(member: Option<u32>, percent: Option<u32>) -> Result<Stage, CodecError> {
    let none = damaged("a rollout has no stage");
    match (member, percent) {
        (Some(member), None) => Ok(Stage::Member(MemberId(member))),
        (None, Some(percent)) => u8::try_from(percent).map(Stage::Percent).map_err(|_| none),
        _ => Err(none),
    }
}

impl PlanMessage {
    fn new(plan: &Plan) -> Self {
        let Timing {
            report,
            lease,
            promise,
            hold,
        } = plan.timing;
        Self {
            revision: plan.revision,
            limits: plan.limits.iter().map(LimitMessage::new).collect(),
            size: Some(SizeMessage::new(&plan.size)),
            groups: plan.groups.iter().map(GroupMessage::new).collect(),
            report: saturating_nanos(report),
            lease: saturating_nanos(lease),
            promise: saturating_nanos(promise),
            hold: saturating_nanos(hold),
            return_seats_after: match plan.return_seats {
                ReturnSeats::Never => None,
                ReturnSeats::After(time) => Some(saturating_nanos(time)),
            },
            rules: plan.rules.as_ref().map(ToString::to_string),
        }
    }

    fn plan(self) -> Result<Plan, CodecError> {
        let limits = self.limits.into_iter().map(LimitMessage::limit);
        let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
        // They are searched.
        if !limits.is_sorted_by(|one, other| one.id < other.id) {
            return Err(damaged("its limits are not in order"));
        }
        let groups = self.groups.into_iter().map(GroupMessage::group);
        let after = self.return_seats_after.map(Duration::from_nanos);
        Ok(Plan {
            revision: self.revision,
            limits,
            size: self.size.ok_or(damaged("a plan has no size"))?.size(),
            groups: groups.collect::<Result<_, _>>()?,
            timing: Timing {
                report: Duration::from_nanos(self.report),
                lease: Duration::from_nanos(self.lease),
                promise: Duration::from_nanos(self.promise),
                hold: Duration::from_nanos(self.hold),
            },
            return_seats: after.map_or(ReturnSeats::Never, ReturnSeats::After),
            rules: self.rules.map(name).transpose()?,
        })
    }
}

impl LimitMessage {
    fn new(limit: &Limit) -> Self {
        let fallback = match limit.quota.fallback {
            Fallback::Share => FallbackMessage::Share,
            Fallback::Floor => FallbackMessage::Floor,
            Fallback::Deny => FallbackMessage::Deny,
        };
        Self {
            id: limit.id.0,
            name: limit.name.to_string(),
            group: limit.group.as_ref().map(ToString::to_string),
            rate: limit.quota.rate,
            burst: limit.quota.burst,
            least_burst: limit.quota.least_burst,
            fallback: fallback.into(),
        }
    }

    fn limit(self) -> Result<Limit, CodecError> {
        let fallback = match FallbackMessage::try_from(self.fallback) {
            Ok(FallbackMessage::Share) => Fallback::Share,
            Ok(FallbackMessage::Floor) => Fallback::Floor,
            Ok(FallbackMessage::Deny) => Fallback::Deny,
            Err(_) => return Err(damaged("a limit has an unknown fallback")),
        };
        Ok(Limit {
            id: LimitId(self.id),
            name: name(self.name)?,
            group: self.group.map(name).transpose()?,
            quota: Quota {
                rate: self.rate,
                burst: self.burst,
                least_burst: self.least_burst,
                fallback,
            },
        })
    }
}

impl SizeMessage {
    fn new(size: &Size) -> Self {
        Self {
            total_weight: size.total_weight,
            seats: size.seats,
            is_auto: size.sizing == Sizing::Auto,
        }
    }

    const fn size(self) -> Size {
        Size {
            total_weight: self.total_weight,
            seats: self.seats,
            sizing: if self.is_auto {
                Sizing::Auto
            } else {
                Sizing::Fixed
            },
        }
    }
}

impl GroupMessage {
    fn new(group: &Group) -> Self {
        Self {
            name: group.name.to_string(),
            size: Some(SizeMessage::new(&group.size)),
        }
    }

    fn group(self) -> Result<Group, CodecError> {
        Ok(Group {
            name: name(self.name)?,
            size: self.size.ok_or(damaged("a group has no size"))?.size(),
        })
    }
}

impl EnvelopeMessage {
    fn new(envelope: &Envelope) -> Self {
        Self {
            most: Some(PlanMessage::new(&envelope.most)),
            least_bursts: envelope.least_bursts.clone(),
            seats: envelope.seats,
            group_seats: envelope.group_seats.clone(),
            rates: envelope.rates.clone(),
        }
    }

    fn envelope(self) -> Result<Envelope, CodecError> {
        let most = self
            .most
            .ok_or(damaged("merged plans have no plan"))?
            .plan()?;
        if self.least_bursts.len() != most.limits.len()
            || self.rates.len() != most.limits.len()
            || self.group_seats.len() != most.groups.len()
        {
            return Err(damaged("merged plans have other limits or groups"));
        }
        Ok(Envelope {
            most,
            least_bursts: self.least_bursts,
            rates: self.rates,
            seats: self.seats,
            group_seats: self.group_seats,
        })
    }
}

impl SeatMessage {
    fn new(seat: &Seat) -> Self {
        let membership = |one: &Membership| MembershipMessage {
            group: one.group.to_string(),
            based: one.based,
        };
        Self {
            member: seat.member.0,
            incarnation: seat.incarnation,
            nonce: seat.nonce,
            weight: seat.weight,
            based: seat.based,
            groups: seat.groups.iter().map(membership).collect(),
            former_weight: seat.former_weight,
            former_groups: seat.former_groups.iter().map(ToString::to_string).collect(),
            draining: seat.draining,
            staged: seat.staged,
        }
    }

    fn seat(self) -> Result<Seat, CodecError> {
        let membership = |one: MembershipMessage| {
            Ok(Membership {
                group: name(one.group)?,
                based: one.based,
            })
        };
        let groups = self.groups.into_iter().map(membership);
        let former = self.former_groups.into_iter().map(name);
        Ok(Seat {
            member: MemberId(self.member),
            incarnation: self.incarnation,
            nonce: self.nonce,
            weight: self.weight,
            based: self.based,
            groups: groups.collect::<Result<_, CodecError>>()?,
            former_weight: self.former_weight,
            former_groups: former.collect::<Result<_, _>>()?,
            draining: self.draining,
            staged: self.staged,
        })
    }
}
