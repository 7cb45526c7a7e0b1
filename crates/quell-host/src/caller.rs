//! Caller: who sends a request, by the token in its head or the certificate of its connection.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use quell_protocol::http::{Problem, ProblemKind, bearer_token};

use crate::access::{Access, Caller, ClientCertificate, Denied, Role};
use crate::budget::CallerBudget;
use crate::head::Fields;
use crate::requests::Requests;

/// The field that a gateway sets, because `Authorization` may be its visitor's.
pub const TOKEN: &str = "x-quell-token";

/// The field of a token, or of a name and a password (RFC 9110, 11.6.2).
pub const AUTHORIZATION: &str = "authorization";

/// Purpose of a listener. Health and the description of the routes are on every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Questions and administration.
    Everything,
    /// Questions alone, since administration has a listener of its own.
    Questions,
    /// Administration alone.
    Administration,
    /// Questions of Envoy, by gRPC.
    RateLimitService,
}

impl Purpose {
    /// Returns true if it has the routes of the role `ask`.
    #[must_use]
    pub const fn has_questions(self) -> bool {
        matches!(self, Self::Everything | Self::Questions)
    }

    /// Returns true if it has the routes of all other roles.
    #[must_use]
    pub const fn has_administration(self) -> bool {
        matches!(self, Self::Everything | Self::Administration)
    }
}

/// Facts about the client that sent a request.
#[derive(Clone, Debug)]
pub struct Client {
    /// None on a Unix socket.
    pub address: Option<IpAddr>,
    /// Purpose of the listener that the client is connected to.
    pub purpose: Purpose,
    /// Identity that it has shown.
    pub caller: Caller,
    /// Budget of the bodies of its requests.
    pub buffers: Arc<CallerBudget>,
    /// Tells a call that the client hangs up. None over HTTP/2, where its answer is dropped then.
    pub requests: Option<Arc<Requests>>,
}

/// Says who sends a request. `X-Quell-Token` counts before `Authorization`, and both before the
/// certificate of the connection.
#[inline]
pub fn authenticate(
    head: &impl Fields,
    access: &Access,
    certificate: Option<&ClientCertificate>,
) -> Caller {
    if !access.is_closed() {
        return Caller::Anyone;
    }
    match token(head) {
        Some(token) => access.of_token(None, token),
        None => access.of_connection(certificate),
    }
}

/// The token that a request shows. One that shows two shows none: the second may have come from outside,
/// past a gateway that added its own.
#[inline]
pub fn token(head: &impl Fields) -> Option<&[u8]> {
    if head.is_repeated(TOKEN) || head.is_repeated(AUTHORIZATION) {
        return None;
    }
    let token = head.field(TOKEN);
    token.or_else(|| bearer_token(head.field(AUTHORIZATION)?))
}

/// The caller of a request, if it has `role`: the first step of every route that is not for everybody. A
/// route that is about one domain checks that as well, once it has read which.
pub fn caller(request: &Request, role: Role) -> Result<Caller, Denied> {
    let client = request.extensions().get::<Client>();
    // A request without a client came some other way than a listener's.
    let caller = client.map_or(Caller::Stranger, |client| client.caller.clone());
    caller.check(role, None)?;
    Ok(caller)
}

/// As [`caller`], of a route for which one of several roles is enough.
pub fn caller_of_either(request: &Request, roles: &[Role]) -> Result<Caller, Denied> {
    let client = request.extensions().get::<Client>();
    let caller = client.map_or(Caller::Stranger, |client| client.caller.clone());
    caller.check_either(roles, None)?;
    Ok(caller)
}

/// Requests that tell a call when its client hangs up.
pub fn requests(request: &Request) -> Option<Arc<Requests>> {
    request.extensions().get::<Client>()?.requests.clone()
}

/// Origin of a request; none for a Unix socket.
pub fn address(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<Client>()?.address
}

impl From<Denied> for Box<Problem> {
    fn from(denied: Denied) -> Self {
        let kind = match denied {
            Denied::Unauthenticated => ProblemKind::Unauthorized,
            _ => ProblemKind::NotPermitted,
        };
        Self::new(Problem::new(kind, denied.to_string()))
    }
}
