//! Access: the role that each command needs.

use quell_protocol::resp::{Client, Command, Request};

use crate::access::{Caller, Denied, Role};

/// Refuses `CL.THROTTLE` to a caller that may not send it: its limits belong to no domain.
#[inline]
pub(super) fn check_ad_hoc(caller: &Caller) -> Result<(), Denied> {
    caller.check(Role::Ask, None)?;
    caller.check_whole()
}

/// Refuses a command that the caller may not send.
pub(super) fn check(caller: &Caller, request: &Request<'_>) -> Result<(), Denied> {
    let whole = |role| caller.check(role, None).and_then(|()| caller.check_whole());
    match &request.command {
        Ok(command) if command.is_before_auth() => Ok(()),
        Ok(Command::Throttle(_)) => check_ad_hoc(caller),
        Ok(Command::Acquire(query) | Command::Peek(query)) => {
            caller.check(Role::Ask, Some(query.domain()))
        }
        Ok(Command::Reserve(reserve)) => caller.check(Role::Ask, Some(reserve.query.domain())),
        Ok(Command::End(end)) => caller.check(Role::Ask, Some(end.domain)),
        // The route that does it checks the rest.
        Ok(Command::Override(_)) => caller.check_any(),
        Ok(Command::Client(Client::List)) => whole(Role::Read),
        // These are about the connection, or the same for everybody. An error tells nothing either.
        Ok(
            Command::Ping(_)
            | Command::Echo(_)
            | Command::Client(_)
            | Command::Table(_)
            // Clients send it to learn whether a server is ready.
            | Command::Info(_)
            | Command::Select
            | Command::Multi
            | Command::Exec
            | Command::Discard,
        )
        | Err(_) => caller.check_any(),
        // A command that is missing above is for nobody who has less than this.
        Ok(_) => whole(Role::Admin),
    }
}
