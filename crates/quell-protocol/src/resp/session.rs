//! The commands by which a client sets up its connection: `HELLO`, `AUTH`, `CLIENT`, `SELECT`.

use std::fmt;

use super::args::Args;
use super::encode::{Encoder, Protocol};
use super::error::CommandError;
use super::number::integer;

/// Code and text for a command on a connection that must authenticate first.
pub const NOAUTH: (&str, &str) = ("NOAUTH", "Authentication required.");

/// Code and text for `HELLO` without credentials on a connection that must say `AUTH` first.
pub const HELLO_NOAUTH: (&str, &str) = (
    "NOAUTH",
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
);

/// Code and text for wrong credentials.
pub const WRONG_PASSWORD: (&str, &str) = (
    "WRONGPASS",
    "invalid username-password pair or user is disabled.",
);

/// Code and text for `AUTH` on a server without a password.
pub const NO_PASSWORD_SET: (&str, &str) = (
    "ERR",
    "AUTH called without any password configured for the default user. Are you sure your configuration is correct?",
);

/// The longest name of a connection or of its library, in bytes: it is kept as long as the
/// connection.
const MAX_CLIENT_NAME: usize = 128;

/// A user and a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user, if one was named; `default` is the same as none.
    pub user: Option<&'a [u8]>,
    /// The password. Not shown by `Debug`.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// `HELLO [protocol [AUTH user password] [SETNAME name]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The protocol from the reply on; `None` keeps the current one.
    pub protocol: Option<Protocol>,
    /// Credentials to check before anything else.
    pub credentials: Option<Credentials<'a>>,
    /// The connection's name.
    pub name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let mut hello = Self::default();
        let Some(version) = args.get(0) else {
            return Ok(hello);
        };
        hello.protocol = match integer(version) {
            Some(2) => Some(Protocol::Resp2),
            Some(3) => Some(Protocol::Resp3),
            Some(_) => return Err(CommandError::ProtocolVersion),
            None => return Err(CommandError::ProtocolNumber),
        };
        let mut rest = args.skip(1);
        while let Some(option) = rest.get(0) {
            if option.eq_ignore_ascii_case(b"AUTH") && rest.len() > 2 {
                hello.credentials = Some(credentials(rest.skip(1)));
                rest = rest.skip(3);
            } else if option.eq_ignore_ascii_case(b"SETNAME")
                && let Some(name) = rest.get(1)
            {
                hello.name = Some(client_name(name)?);
                rest = rest.skip(2);
            } else {
                let known = "AUTH user password, or SETNAME name";
                return Err(CommandError::option("HELLO", option, known));
            }
        }
        Ok(hello)
    }
}

/// The reply to `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready<'a> {
    /// The server's version.
    pub version: &'a str,
    /// The connection's number.
    pub id: u64,
}

impl Ready<'_> {
    /// Writes the reply in the protocol of `encoder`, which is the one that `HELLO` asked for.
    pub fn write_reply(&self, encoder: &mut Encoder<'_>) {
        encoder.map(7);
        for text in ["server", "quell", "version", self.version, "proto"] {
            encoder.bulk(text.as_bytes());
        }
        encoder.integer(encoder.protocol().number());
        encoder.bulk(b"id");
        encoder.integer(crate::rounding::signed(self.id));
        for text in ["mode", "standalone", "role", "master", "modules"] {
            encoder.bulk(text.as_bytes());
        }
        encoder.array(0);
    }
}

pub(super) fn credentials(args: Args<'_>) -> Credentials<'_> {
    match (args.get(0), args.get(1)) {
        (Some(user), Some(password)) => Credentials {
            user: Some(user),
            password,
        },
        (password, _) => Credentials {
            user: None,
            password: password.unwrap_or_default(),
        },
    }
}

/// `CLIENT ...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Client<'a> {
    /// `SETNAME name`: names the connection; an empty name removes the name.
    SetName(&'a [u8]),
    /// `GETNAME`: the name, or null.
    GetName,
    /// `SETINFO attribute value`: which library the client uses.
    SetInfo {
        /// Field of the library's information that is set.
        field: LibraryField,
        /// Its value.
        value: &'a [u8],
    },
    /// `ID`: the connection's number.
    Id,
    /// `INFO`: a line about the connection ([`ConnectionFacts`](super::ConnectionFacts)).
    Info,
    /// `LIST`: a line about each connection.
    List,
    /// `NO-EVICT ON|OFF`: accepted, has no effect.
    NoEvict(bool),
    /// `NO-TOUCH ON|OFF`: accepted, has no effect.
    NoTouch(bool),
}

/// The attributes of `CLIENT SETINFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryField {
    /// `LIB-NAME`.
    Name,
    /// `LIB-VER`.
    Version,
}

impl<'a> Client<'a> {
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let subcommand = args.get(0).unwrap_or_default();
        let upper = subcommand.to_ascii_uppercase();
        let want = |count: usize, name: &'static str| match args.len() {
            length if length == count => Ok(()),
            _ => Err(CommandError::Arity(name)),
        };
        let word = args.get(1).unwrap_or_default();
        match upper.as_slice() {
            b"SETNAME" => {
                want(2, "client|setname")?;
                Ok(Self::SetName(client_name(word)?))
            }
            b"GETNAME" => want(1, "client|getname").map(|()| Self::GetName),
            b"SETINFO" => {
                want(3, "client|setinfo")?;
                let value = client_name(args.get(2).unwrap_or_default())?;
                let field = match word.to_ascii_uppercase().as_slice() {
                    b"LIB-NAME" => LibraryField::Name,
                    b"LIB-VER" => LibraryField::Version,
                    _ => {
                        let known = "LIB-NAME or LIB-VER";
                        return Err(CommandError::option("CLIENT SETINFO", word, known));
                    }
                };
                Ok(Self::SetInfo { field, value })
            }
            b"ID" => want(1, "client|id").map(|()| Self::Id),
            b"INFO" => want(1, "client|info").map(|()| Self::Info),
            // Its filters (TYPE, ID ..) are not implemented, so they are refused.
            b"LIST" => want(1, "client|list").map(|()| Self::List),
            b"NO-EVICT" => {
                want(2, "client|no-evict")?;
                switch("CLIENT NO-EVICT", word).map(Self::NoEvict)
            }
            b"NO-TOUCH" => {
                want(2, "client|no-touch")?;
                switch("CLIENT NO-TOUCH", word).map(Self::NoTouch)
            }
            b"REPLY" => Err(CommandError::ClientReply),
            _ => {
                let known = "SETNAME, GETNAME, SETINFO, ID, INFO, LIST, NO-EVICT or NO-TOUCH";
                Err(CommandError::subcommand("CLIENT", subcommand, known))
            }
        }
    }
}

fn switch(command: &'static str, word: &[u8]) -> Result<bool, CommandError> {
    let is_on = word.eq_ignore_ascii_case(b"ON");
    if is_on || word.eq_ignore_ascii_case(b"OFF") {
        return Ok(is_on);
    }
    Err(CommandError::option(command, word, "ON or OFF"))
}

/// Names are words in the lines of `CLIENT LIST`, so they are printable ASCII without spaces.
fn client_name(name: &[u8]) -> Result<&[u8], CommandError> {
    let printable = name.iter().all(u8::is_ascii_graphic);
    if printable && name.len() <= MAX_CLIENT_NAME {
        Ok(name)
    } else {
        Err(CommandError::ClientName(MAX_CLIENT_NAME))
    }
}

/// `SELECT index`: there is one database, 0. Accepting another number would promise separate states.
pub(super) fn select(args: Args<'_>) -> Result<(), CommandError> {
    match integer(args.get(0).unwrap_or_default()) {
        Some(0) => Ok(()),
        Some(_) => Err(CommandError::Database),
        None => Err(CommandError::DatabaseNumber),
    }
}
