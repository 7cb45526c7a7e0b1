//! Caller: who sends a request, by the token in its head or the certificate of its connection.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use quell_protocol::http::{Problem, ProblemKind, bearer_token};

use super::Purpose;
use super::origin::Head;
use super::stream::Requests;
use crate::access::{Access, Caller, ClientCertificate, Denied, Role};
use crate::budget::AddressBudget;

/// The field that a gateway sets, because `Authorization` may be its visitor's.
pub(super) const TOKEN: &str = "x-quell-token";

pub(super) const AUTHORIZATION: &str = "authorization";

/// What is known of the client that sent a request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// None on a Unix socket.
    pub(super) address: Option<IpAddr>,
    /// What the listener is for that the client is connected to.
    pub(super) purpose: Purpose,
    pub(super) caller: Caller,
    /// What the bodies of its requests draw from.
    pub(super) buffers: Arc<AddressBudget>,
    /// Where a call learns that the client hangs up. None over HTTP/2, where its answer is dropped then.
    pub(super) requests: Option<Arc<Requests>>,
}

/// Says who sends a request. `X-Quell-Token` counts before `Authorization`, and both before the
/// certificate of the connection.
#[inline]
pub(super) fn authenticate(
    head: &impl Head,
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
pub(super) fn token(head: &impl Head) -> Option<&[u8]> {
    if head.is_repeated(TOKEN) || head.is_repeated(AUTHORIZATION) {
        return None;
    }
    let token = head.field(TOKEN);
    token.or_else(|| bearer_token(head.field(AUTHORIZATION)?))
}

/// The caller of a request, if it has `role`: the first step of every route that is not for everybody. A
/// route that is about one domain checks that as well, once it has read which.
pub(super) fn caller(request: &Request, role: Role) -> Result<Caller, Denied> {
    let client = request.extensions().get::<Client>();
    // A request without a client came some other way than a listener's.
    let caller = client.map_or(Caller::Stranger, |client| client.caller.clone());
    caller.check(role, None)?;
    Ok(caller)
}

/// Where the call of a request learns that its client hangs up.
pub(super) fn requests(request: &Request) -> Option<Arc<Requests>> {
    request.extensions().get::<Client>()?.requests.clone()
}

/// Where a request comes from; none for a Unix socket.
pub(super) fn address(request: &Request) -> Option<IpAddr> {
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
