//! Command error: why a frame is not a command that the server knows.

use super::args::Args;
use super::encode::Encoder;
use super::table::usage;
use super::throttle::ThrottleError;
use quell_core::query_bounds::QueryError;

/// The most bytes of a client's text that an error repeats, including escapes; as in Redis.
const MAX_ECHO_BYTES: usize = 128;

/// Reason why a frame is not a command. The connection stays usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No such command.
    #[error("unknown command '{name}', with args beginning with: {args}")]
    Unknown {
        /// The name as received: escaped, shortened.
        name: String,
        /// The arguments as received: escaped, shortened.
        args: String,
    },
    /// No such subcommand.
    #[error("unknown subcommand '{subcommand}' of {command}: write {known}")]
    Subcommand {
        /// The command.
        command: &'static str,
        /// The subcommand as received: escaped, shortened.
        subcommand: String,
        /// The existing subcommands.
        known: &'static str,
    },
    /// Too few or too many arguments. The first words are those of Redis, since clients know them.
    #[error(
        "wrong number of arguments for '{}' command, usage: {}",
        .0.to_ascii_lowercase(),
        usage(.0)
    )]
    Arity(&'static str),
    /// The arguments of `CL.THROTTLE`.
    #[error(transparent)]
    Throttle(#[from] ThrottleError),
    /// The query of `QUELL.ACQUIRE` or `QUELL.PEEK`.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// `COST` without a number.
    #[error("COST of {command} is not a whole number: write COST and a number of at least 1")]
    Cost {
        /// The command.
        command: &'static str,
    },
    /// A name without a value.
    #[error("an entry of {command} has a name and no value: write pairs of a name and a value")]
    OddEntries {
        /// The command.
        command: &'static str,
    },
    /// Not a valid id of a hold.
    #[error("the id is not a name of a hold: write 1 to 64 printable characters without spaces")]
    HoldId,
    /// `QUELL.RESERVE` with a hold that is not a number.
    #[error("the hold is not a whole number of milliseconds: write one, such as 60000")]
    HoldLength,
    /// `QUELL.SETTLE` with a cost that is not a number.
    #[error("the actual cost is not a whole number: write 0 or more")]
    Actual,
    /// `QUELL.RELEASE` with something else after the id.
    #[error("a release has one word more at most: write FAILED if the work failed")]
    Failed,
    /// `HELLO` with a protocol other than 2 or 3.
    #[error("unsupported protocol version")]
    ProtocolVersion,
    /// `HELLO` with something that is not a number.
    #[error("Protocol version is not an integer or out of range")]
    ProtocolNumber,
    /// An option that the command does not have.
    #[error("syntax error in {command} option '{option}': write {known}")]
    Option {
        /// The command.
        command: &'static str,
        /// The option as received: escaped, shortened.
        option: String,
        /// The existing options.
        known: &'static str,
    },
    /// A connection's name that is too long or contains spaces or control characters.
    #[error(
        "Client names cannot contain spaces, newlines or special characters, nor more than {0} bytes"
    )]
    ClientName(usize),
    /// `CLIENT REPLY`.
    #[error("CLIENT REPLY is not available: every command is answered")]
    ClientReply,
    /// `SELECT` with something that is not a number.
    #[error("invalid DB index")]
    DatabaseNumber,
    /// `SELECT` of a database other than 0.
    #[error("DB index is out of range: there is one, write SELECT 0 (domains keep states apart)")]
    Database,
}

impl CommandError {
    /// The code that the reply begins with.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ProtocolVersion => "NOPROTO",
            _ => "ERR",
        }
    }

    /// Writes the error as a reply.
    pub fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.error(self.code(), &self.to_string());
    }

    pub(super) fn subcommand(command: &'static str, word: &[u8], known: &'static str) -> Self {
        Self::Subcommand {
            command,
            subcommand: echo(word, MAX_ECHO_BYTES),
            known,
        }
    }

    pub(super) fn option(command: &'static str, word: &[u8], known: &'static str) -> Self {
        Self::Option {
            command,
            option: echo(word, MAX_ECHO_BYTES),
            known,
        }
    }

    pub(super) fn unknown(name: &[u8], rest: Args<'_>) -> Self {
        let mut args = String::new();
        for arg in rest.iter() {
            if args.len() >= MAX_ECHO_BYTES {
                break;
            }
            args.push('\'');
            args.push_str(&echo(arg, MAX_ECHO_BYTES - args.len()));
            args.push_str("' ");
        }
        Self::Unknown {
            name: echo(name, MAX_ECHO_BYTES),
            args,
        }
    }
}

/// A client's word, made printable, with at most `most` bytes (plus the rest of an escape).
fn echo(word: &[u8], most: usize) -> String {
    let mut text = String::new();
    for byte in word {
        if text.len() >= most {
            break;
        }
        text.extend(byte.escape_ascii().map(char::from));
    }
    text
}
