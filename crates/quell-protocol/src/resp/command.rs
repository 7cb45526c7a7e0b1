//! Command: the meaning of a frame.

use quell_core::account::Account;
use quell_core::descriptor::Query;
use quell_core::end_hold::Ending;

use super::args::Args;
use super::error::CommandError;
use super::hold_commands::{EndCommand, Reserve};
use super::override_commands::OverrideCommand;
use super::question;
use super::session::{self, Client, Credentials, Hello};
use super::table::{self, Name};
use super::table_request::TableRequest;
use super::throttle::Throttle;

/// A command with its arguments, borrowed from the frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command<'a> {
    /// `CL.THROTTLE`: ask and charge a limit that comes with the call.
    Throttle(Throttle<'a>),
    /// `QUELL.ACQUIRE`: ask and charge the rules.
    Acquire(Query<'a>),
    /// `QUELL.PEEK`: ask the rules.
    Peek(Query<'a>),
    /// `QUELL.RESERVE`: charge an estimate.
    Reserve(Reserve<'a>),
    /// `QUELL.SETTLE`, `QUELL.CANCEL`, `QUELL.RELEASE` and `QUELL.RENEW`: end or renew a hold.
    End(EndCommand<'a>),
    /// `QUELL.OVERRIDE`: read or change numbers of single keys.
    Override(OverrideCommand<'a>),
    /// `PING [message]`: answer the message, or `PONG`.
    Ping(Option<&'a [u8]>),
    /// `ECHO message`: answer the message.
    Echo(&'a [u8]),
    /// `HELLO`: choose the protocol; the reply is [`Ready`](super::Ready).
    Hello(Hello<'a>),
    /// `AUTH`: show credentials.
    Auth(Credentials<'a>),
    /// `CLIENT`: name the connection or describe it.
    Client(Client<'a>),
    /// `COMMAND`: describe the commands.
    Table(TableRequest<'a>),
    /// `INFO` with the requested sections; the reply is [`ServerFacts`](super::ServerFacts).
    Info(Args<'a>),
    /// `SELECT 0`: answer `OK`.
    Select,
    /// `MULTI`: queue the following commands in a [`Queue`](super::Queue); some clients do this with
    /// pipelines.
    Multi,
    /// `EXEC`: answer the queued commands.
    Exec,
    /// `DISCARD`: drop the queued commands.
    Discard,
    /// `QUIT`: answer `OK` and close.
    Quit,
    /// `RESET`: back to RESP2, no name, not authenticated; answer `RESET`.
    Reset,
}

impl<'a> Command<'a> {
    /// Reads a frame's arguments. Names and keywords may be in any case.
    ///
    /// # Errors
    /// [`CommandError`] if there is no such command or its arguments are wrong. The connection stays
    /// usable.
    pub fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let name = args.get(0).unwrap_or_default();
        let rest = args.skip(1);
        let Some(row) = table::find(name) else {
            return Err(CommandError::unknown(name, rest));
        };
        if !row.takes(args.len()) {
            return Err(CommandError::Arity(row.upper));
        }
        Ok(match row.name {
            Name::Throttle => Self::Throttle(Throttle::parse(rest)?),
            Name::Acquire => Self::Acquire(question::parse("QUELL.ACQUIRE", rest)?),
            Name::Peek => Self::Peek(question::parse("QUELL.PEEK", rest)?),
            Name::Reserve => Self::Reserve(Reserve::parse(rest)?),
            Name::Settle => Self::End(EndCommand::settle(rest)?),
            Name::Cancel => Self::End(EndCommand::parse(Ending::Cancel, rest)?),
            Name::Release => Self::End(EndCommand::release(rest)?),
            Name::Renew => Self::End(EndCommand::parse(Ending::Renew, rest)?),
            Name::Override => Self::Override(OverrideCommand::parse(rest)?),
            Name::Ping => Self::Ping(rest.get(0)),
            Name::Echo => Self::Echo(rest.get(0).unwrap_or_default()),
            Name::Hello => Self::Hello(Hello::parse(rest)?),
            Name::Auth => Self::Auth(session::credentials(rest)),
            Name::Client => Self::Client(Client::parse(rest)?),
            Name::Command => Self::Table(TableRequest::parse(rest)?),
            Name::Info => Self::Info(rest),
            Name::Select => session::select(rest).map(|()| Self::Select)?,
            Name::Multi => Self::Multi,
            Name::Exec => Self::Exec,
            Name::Discard => Self::Discard,
            Name::Quit => Self::Quit,
            Name::Reset => Self::Reset,
        })
    }

    /// Sets whose part of scarce places the call takes up, if it is one.
    pub const fn set_account(&mut self, account: Account) {
        match self {
            Self::Acquire(query) | Self::Peek(query) => query.set_account(account),
            Self::Reserve(reserve) => reserve.query.set_account(account),
            _ => {}
        }
    }

    /// Returns true if the command is allowed before `AUTH`.
    #[must_use]
    pub const fn is_before_auth(&self) -> bool {
        matches!(
            self,
            Self::Auth(_) | Self::Hello(_) | Self::Quit | Self::Reset
        )
    }
}
