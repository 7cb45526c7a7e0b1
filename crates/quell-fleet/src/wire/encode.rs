//! Encode: a message as protobuf. Durations beyond 584 years are written as that.

use core::time::Duration;

use quell_shares::message::{
    GivenUp, Grant, Granted, Held, Hold, Join, Joined, Kept, LimitName, Load, NoSeat, Push, Report,
    Request, Response,
};
use quell_shares::schedule::Right;

use crate::proto::{self, request, response};

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A right of nothing is not written.
fn right(right: Right) -> Option<proto::Right> {
    let Right { rate, burst } = right;
    (rate > 0 || burst > 0).then_some(proto::Right { rate, burst })
}

/// Leases that follow the last one that allows or lasts anything are not written.
fn leases(leases: &[(Right, Duration)]) -> Vec<proto::Lease> {
    let is_empty = |lease: &(Right, Duration)| *lease == (Right::NONE, Duration::ZERO);
    let len = leases.iter().rposition(|lease| !is_empty(lease));
    let used = leases.iter().take(len.map_or(0, |last| last + 1));
    used.map(|(granted, lasts)| proto::Lease {
        right: right(*granted),
        lasts_ns: nanos(*lasts),
    })
    .collect()
}

fn kept(kept: &[Kept]) -> Vec<proto::Kept> {
    let one = |kept: &Kept| proto::Kept {
        limit: kept.limit.0,
        right: right(kept.right),
        whole: right(kept.whole),
    };
    kept.iter().map(one).collect()
}

fn names(names: &[LimitName]) -> Vec<proto::LimitName> {
    let one = |name: &LimitName| proto::LimitName {
        limit: name.limit.0,
        name: name.name.to_string(),
    };
    names.iter().map(one).collect()
}

fn join(join: &Join) -> proto::Join {
    proto::Join {
        member: join.member.0,
        nonce: join.nonce,
        weight: join.weight,
        groups: join.groups.iter().map(ToString::to_string).collect(),
        exclusive: join.exclusive,
        replaces: join.replaces,
        floors: kept(&join.floors),
        gave_up: join
            .gave_up
            .as_ref()
            .map(|gave_up: &GivenUp| proto::GivenUp {
                epoch: gave_up.epoch,
                bases: kept(&gave_up.bases),
            }),
        epoch: join.epoch,
        record: join.record,
    }
}

fn held(held: &Held) -> proto::Held {
    proto::Held {
        limit: held.limit.0,
        leases: leases(&held.leases),
        gap: right(held.gap),
        base_in_ns: nanos(held.base_in),
        base: right(held.base),
        base_for_ns: nanos(held.base_for),
        floor: right(held.floor),
        floor_for_ns: held.floor_for.map(nanos),
        whole: right(held.whole),
    }
}

fn report(report: &Report) -> proto::Report {
    let load = |load: &Load| proto::Load {
        limit: load.limit.0,
        demand: load.demand,
        margin: load.margin,
        admitted: load.admitted,
        denied: load.denied,
        totals: Some(proto::Totals {
            asked: load.totals.asked,
            refused: load.totals.refused,
            degraded: load.totals.degraded,
        }),
    };
    proto::Report {
        member: report.member.0,
        incarnation: report.incarnation,
        seq: report.seq,
        epoch: report.epoch,
        applied: report.applied,
        revision: report.revision,
        record: report.record,
        loads: report.loads.iter().map(load).collect(),
        held: report.held.as_ref().map(|limits| proto::HeldLimits {
            limits: limits.iter().map(held).collect(),
        }),
    }
}

/// A request of a member.
#[must_use]
pub fn encode_request(request: &Request) -> proto::Request {
    let kind = match request {
        Request::Join(request) => request::Kind::Join(join(request)),
        Request::Report(request) => request::Kind::Report(report(request)),
        Request::Leave(leave) => request::Kind::Leave(proto::Leave {
            member: leave.member.0,
            incarnation: leave.incarnation,
        }),
    };
    proto::Request {
        kind: Some(kind),
        rules: None,
        seen: None,
    }
}

fn joined(joined: &Joined) -> proto::Joined {
    proto::Joined {
        epoch: joined.epoch,
        nonce: joined.nonce,
        incarnation: joined.incarnation,
        names: names(&joined.names),
        record: joined.record,
    }
}

fn granted(granted: &Granted) -> proto::Granted {
    proto::Granted {
        limit: granted.limit.0,
        leases: leases(&granted.leases),
        gap: right(granted.gap),
        base: right(granted.base),
        floor: right(granted.floor),
        whole: right(granted.whole),
    }
}

fn grant(grant: &Grant) -> proto::Grant {
    proto::Grant {
        incarnation: grant.incarnation,
        epoch: grant.epoch,
        version: grant.version,
        seq: grant.seq,
        revision: grant.revision,
        record: grant.record,
        report_ns: nanos(grant.report),
        promise_ns: nanos(grant.promise),
        hold_ns: nanos(grant.hold),
        ends_ns: grant.ends.map(nanos),
        draining: grant.draining,
        rights: grant.rights.iter().map(granted).collect(),
        names: names(&grant.names),
    }
}

fn hold(hold: &Hold) -> proto::Hold {
    proto::Hold {
        incarnation: hold.incarnation,
        epoch: hold.epoch,
        seq: hold.seq,
        record: hold.record,
        promise_ns: hold.promise.map(nanos),
    }
}

fn push(push: &Push) -> proto::Push {
    let rights = push.rights.iter().map(|pushed| proto::Pushed {
        limit: pushed.limit.0,
        right: right(pushed.right),
    });
    proto::Push {
        incarnation: push.incarnation,
        epoch: push.epoch,
        version: push.version,
        revision: push.revision,
        rights: rights.collect(),
    }
}

/// An answer of a coordinator. `leader` is where the leader listens, if the answer is that another
/// coordinator leads and its URL is known.
#[must_use]
pub fn encode_response(response: &Response, leader: Option<&str>) -> proto::Response {
    let url = leader;
    let kind = match response {
        Response::Joined(answer) => response::Kind::Joined(joined(answer)),
        Response::Occupied {
            nonce,
            incarnation,
            epoch,
            retry,
        } => response::Kind::Occupied(proto::Occupied {
            nonce: *nonce,
            incarnation: *incarnation,
            epoch: *epoch,
            retry_ns: nanos(*retry),
        }),
        Response::Grant(answer) => response::Kind::Grant(grant(answer)),
        Response::Hold(answer) => response::Kind::Hold(hold(answer)),
        Response::Push(answer) => response::Kind::Push(push(answer)),
        Response::Left { incarnation } => response::Kind::Left(proto::Left {
            incarnation: *incarnation,
        }),
        Response::Unknown {
            incarnation,
            epoch,
            retry,
            no_seat: why,
        } => response::Kind::Unknown(proto::Unknown {
            incarnation: *incarnation,
            epoch: *epoch,
            retry_ns: nanos(*retry),
            no_seat: why.as_ref().map(no_seat),
        }),
        Response::Elsewhere { leader, retry } => response::Kind::Elsewhere(proto::Elsewhere {
            leader: leader.map(|leader| leader.0),
            retry_ns: nanos(*retry),
            url: url.unwrap_or_default().to_owned(),
        }),
    };
    proto::Response { kind: Some(kind) }
}

fn no_seat(why: &NoSeat) -> proto::NoSeat {
    use proto::no_seat::Why;
    let (why, group) = match why {
        NoSeat::Full(group) => (Why::Full, group.as_deref()),
        NoSeat::NoGroup(group) => (Why::NoGroup, Some(&**group)),
        NoSeat::Taken => (Why::Taken, None),
        NoSeat::TooManyJoins => (Why::TooManyJoins, None),
        NoSeat::Unwritten => (Why::Unwritten, None),
    };
    proto::NoSeat {
        why: why.into(),
        group: group.unwrap_or_default().to_owned(),
    }
}
