//! Decode: a message from protobuf, checked.

use core::time::Duration;

use quell_shares::message::{
    CoordinatorId, GivenUp, Grant, Granted, Held, Hold, Join, Joined, Kept, Leave, LimitName, Load,
    NoSeat, Push, Pushed, Report, Request, Response, Totals,
};
use quell_shares::plan::{LimitId, MAX_LIMITS, MAX_MEMBERSHIPS, MAX_NAME, MemberId, Name, Timing};
use quell_shares::schedule::{LEASE_STEPS, Right};

use super::{MAX_RETRY_S, MAX_URL, WireError};
use crate::proto::{self, request, response};

type Result<T> = core::result::Result<T, WireError>;

fn right(right: Option<proto::Right>) -> Right {
    right.map_or(Right::NONE, |proto::Right { rate, burst }| Right {
        rate,
        burst,
    })
}

fn leases(leases: &[proto::Lease]) -> Result<[(Right, Duration); LEASE_STEPS]> {
    if leases.len() > LEASE_STEPS {
        return Err(WireError::Leases(leases.len()));
    }
    let mut all = [(Right::NONE, Duration::ZERO); LEASE_STEPS];
    for (to, from) in all.iter_mut().zip(leases) {
        *to = (right(from.right), Duration::from_nanos(from.lasts_ns));
    }
    Ok(all)
}

/// Reads a list that has one entry per limit, in the order of their numbers.
fn per_limit<P, T>(
    entries: Vec<P>,
    limit: impl Fn(&P) -> u64,
    read: impl Fn(LimitId, P) -> Result<T>,
) -> Result<Vec<T>> {
    if entries.len() > MAX_LIMITS {
        return Err(WireError::Limits(entries.len()));
    }
    let mut last = 0;
    let one = |entry: P| {
        let id = limit(&entry);
        if id <= last {
            return Err(WireError::Order(id));
        }
        last = id;
        read(LimitId(id), entry)
    };
    entries.into_iter().map(one).collect()
}

fn name(name: &str) -> Result<Name> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(WireError::Name(name.len()));
    }
    Ok(Name::from(name))
}

fn no_seat(why: proto::NoSeat) -> Result<NoSeat> {
    use proto::no_seat::Why;
    Ok(match (why.why(), &*why.group) {
        (Why::Taken, _) => NoSeat::Taken,
        (Why::TooManyJoins, _) => NoSeat::TooManyJoins,
        (Why::Unwritten, _) => NoSeat::Unwritten,
        (Why::NoGroup, group) => NoSeat::NoGroup(name(group)?),
        (Why::Full, "") => NoSeat::Full(None),
        (Why::Full, group) => NoSeat::Full(Some(name(group)?)),
    })
}

fn names(names: Vec<proto::LimitName>) -> Result<Vec<LimitName>> {
    let read = |limit, entry: proto::LimitName| {
        let name = name(&entry.name)?;
        Ok(LimitName { limit, name })
    };
    per_limit(names, |entry| entry.limit, read)
}

fn kept(kept: Vec<proto::Kept>) -> Result<Vec<Kept>> {
    let read = |limit, entry: proto::Kept| {
        Ok(Kept {
            limit,
            right: right(entry.right),
            whole: right(entry.whole),
        })
    };
    per_limit(kept, |entry| entry.limit, read)
}

fn join(join: proto::Join) -> Result<Join> {
    if join.groups.len() > MAX_MEMBERSHIPS {
        return Err(WireError::Groups(join.groups.len()));
    }
    if join.weight == 0 {
        return Err(WireError::Weight);
    }
    let gave_up = |gave_up: proto::GivenUp| {
        let bases = kept(gave_up.bases)?;
        Ok(GivenUp {
            epoch: gave_up.epoch,
            bases,
        })
    };
    Ok(Join {
        member: MemberId(join.member),
        nonce: join.nonce,
        weight: join.weight,
        groups: join
            .groups
            .iter()
            .map(|group| name(group))
            .collect::<Result<_>>()?,
        exclusive: join.exclusive,
        replaces: join.replaces,
        floors: kept(join.floors)?,
        gave_up: join.gave_up.map(gave_up).transpose()?,
        epoch: join.epoch,
        record: join.record,
    })
}

fn held(held: proto::HeldLimits) -> Result<Vec<Held>> {
    let read = |limit, entry: proto::Held| {
        Ok(Held {
            limit,
            leases: leases(&entry.leases)?,
            gap: right(entry.gap),
            base_in: Duration::from_nanos(entry.base_in_ns),
            base: right(entry.base),
            base_for: Duration::from_nanos(entry.base_for_ns),
            floor: right(entry.floor),
            floor_for: entry.floor_for_ns.map(Duration::from_nanos),
            whole: right(entry.whole),
        })
    };
    per_limit(held.limits, |entry| entry.limit, read)
}

fn report(report: proto::Report) -> Result<Report> {
    let load = |limit, entry: proto::Load| {
        let totals = entry.totals.unwrap_or_default();
        Ok(Load {
            limit,
            demand: entry.demand,
            margin: entry.margin,
            admitted: entry.admitted,
            denied: entry.denied,
            totals: Totals {
                asked: totals.asked,
                refused: totals.refused,
                degraded: totals.degraded,
            },
        })
    };
    Ok(Report {
        member: MemberId(report.member),
        incarnation: report.incarnation,
        seq: report.seq,
        epoch: report.epoch,
        applied: report.applied,
        revision: report.revision,
        record: report.record,
        loads: per_limit(report.loads, |entry| entry.limit, load)?,
        held: report.held.map(held).transpose()?,
    })
}

/// Reads what a member sent.
///
/// # Errors
/// If anything in it is outside its bounds; the stream is then ended with `INVALID_ARGUMENT`.
pub fn decode_request(request: proto::Request) -> Result<Request> {
    Ok(match request.kind.ok_or(WireError::Kind)? {
        request::Kind::Join(request) => Request::Join(join(request)?),
        request::Kind::Report(request) => Request::Report(report(request)?),
        request::Kind::Leave(leave) => Request::Leave(Leave {
            member: MemberId(leave.member),
            incarnation: leave.incarnation,
        }),
    })
}

fn retry(nanos: u64) -> Result<Duration> {
    let retry = Duration::from_nanos(nanos);
    if retry > Duration::from_secs(MAX_RETRY_S) {
        return Err(WireError::Retry(retry));
    }
    Ok(retry)
}

fn grant(grant: proto::Grant) -> Result<Grant> {
    let report = Duration::from_nanos(grant.report_ns);
    if !Timing::REPORT.contains(&report) {
        return Err(WireError::Report(report));
    }
    let granted = |limit, entry: proto::Granted| {
        Ok(Granted {
            limit,
            leases: leases(&entry.leases)?,
            gap: right(entry.gap),
            base: right(entry.base),
            floor: right(entry.floor),
            whole: right(entry.whole),
        })
    };
    Ok(Grant {
        incarnation: grant.incarnation,
        epoch: grant.epoch,
        version: grant.version,
        seq: grant.seq,
        revision: grant.revision,
        record: grant.record,
        report,
        promise: Duration::from_nanos(grant.promise_ns),
        hold: Duration::from_nanos(grant.hold_ns),
        ends: grant.ends_ns.map(Duration::from_nanos),
        draining: grant.draining,
        rights: per_limit(grant.rights, |entry| entry.limit, granted)?,
        names: names(grant.names)?,
    })
}

fn push(push: proto::Push) -> Result<Push> {
    let pushed = |limit, entry: proto::Pushed| {
        Ok(Pushed {
            limit,
            right: right(entry.right),
        })
    };
    Ok(Push {
        incarnation: push.incarnation,
        epoch: push.epoch,
        version: push.version,
        revision: push.revision,
        rights: per_limit(push.rights, |entry| entry.limit, pushed)?,
    })
}

/// Reads what a coordinator sent. The second value is where the leader listens, if the answer says so.
///
/// # Errors
/// If anything in it is outside its bounds.
pub fn decode_response(response: proto::Response) -> Result<(Response, Option<String>)> {
    let answer = match response.kind.ok_or(WireError::Kind)? {
        response::Kind::Joined(joined) => Response::Joined(Joined {
            epoch: joined.epoch,
            nonce: joined.nonce,
            incarnation: joined.incarnation,
            record: joined.record,
            names: names(joined.names)?,
        }),
        response::Kind::Occupied(occupied) => Response::Occupied {
            nonce: occupied.nonce,
            incarnation: occupied.incarnation,
            epoch: occupied.epoch,
            retry: retry(occupied.retry_ns)?,
        },
        response::Kind::Grant(answer) => Response::Grant(grant(answer)?),
        response::Kind::Hold(hold) => Response::Hold(Hold {
            incarnation: hold.incarnation,
            epoch: hold.epoch,
            seq: hold.seq,
            record: hold.record,
            promise: hold.promise_ns.map(Duration::from_nanos),
        }),
        response::Kind::Push(answer) => Response::Push(push(answer)?),
        response::Kind::Left(left) => Response::Left {
            incarnation: left.incarnation,
        },
        response::Kind::Unknown(unknown) => Response::Unknown {
            incarnation: unknown.incarnation,
            epoch: unknown.epoch,
            retry: retry(unknown.retry_ns)?,
            no_seat: unknown.no_seat.map(no_seat).transpose()?,
        },
        response::Kind::Elsewhere(elsewhere) => {
            if elsewhere.url.len() > MAX_URL {
                return Err(WireError::Url(elsewhere.url.len()));
            }
            let answer = Response::Elsewhere {
                leader: elsewhere.leader.map(CoordinatorId),
                retry: retry(elsewhere.retry_ns)?,
            };
            let url = Some(elsewhere.url).filter(|url| !url.is_empty());
            return Ok((answer, url));
        }
        // No answer of the protocol: `wire_rules::decode` reads them.
        response::Kind::Rules(_) | response::Kind::Candidate(_) | response::Kind::Judged(_) => {
            return Err(WireError::Kind);
        }
    };
    Ok((answer, None))
}
