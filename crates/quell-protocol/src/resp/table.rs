//! The table of commands: what is known, with how many arguments, and what `COMMAND` says of it.

use super::args::Args;
use super::encode::Encoder;
use super::error::{CommandError, echo};

/// Which command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Throttle,
    Acquire,
    Peek,
    Reserve,
    Settle,
    Cancel,
    Release,
    Renew,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Command,
    Info,
    Select,
    Multi,
    Exec,
    Discard,
    Quit,
    Reset,
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: Name,
    /// In capitals, as it is looked up.
    upper: &'static str,
    /// As it is shown.
    pub(super) lower: &'static str,
    /// Least and most arguments, the name included.
    arity: (usize, usize),
    /// Position of the first key, counted from 0; 0 for a command without keys.
    key: i64,
    flags: &'static [&'static str],
    group: &'static str,
    summary: &'static str,
}

/// No upper bound of its own: the frame's bound holds.
const MANY: usize = usize::MAX;

/// The commands, the busiest first: a look-up goes through them in this order.
const ROWS: [Row; 21] = [
    Row {
        name: Name::Throttle,
        upper: "CL.THROTTLE",
        lower: "cl.throttle",
        arity: (5, 6),
        key: 1,
        flags: &["write", "fast"],
        group: "module",
        summary: "Asks and charges a limit that comes with the call: key max_burst count period [quantity]",
    },
    Row {
        name: Name::Acquire,
        upper: "QUELL.ACQUIRE",
        lower: "quell.acquire",
        arity: (2, MANY),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Asks and charges the rules of a domain: domain [COST n] name value [name value ..]",
    },
    Row {
        name: Name::Peek,
        upper: "QUELL.PEEK",
        lower: "quell.peek",
        arity: (2, MANY),
        key: 0,
        flags: &["readonly", "fast"],
        group: "module",
        summary: "Asks the rules of a domain and charges nothing: domain [COST n] name value [name value ..]",
    },
    Row {
        name: Name::Reserve,
        upper: "QUELL.RESERVE",
        lower: "quell.reserve",
        arity: (4, MANY),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Charges an estimate that is settled later: domain id|* hold_ms [COST n] name value [name value ..]",
    },
    Row {
        name: Name::Settle,
        upper: "QUELL.SETTLE",
        lower: "quell.settle",
        arity: (4, 4),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Pays what a reservation cost in truth: domain id actual",
    },
    Row {
        name: Name::Cancel,
        upper: "QUELL.CANCEL",
        lower: "quell.cancel",
        arity: (3, 3),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Gives back all that an id holds: domain id",
    },
    Row {
        name: Name::Release,
        upper: "QUELL.RELEASE",
        lower: "quell.release",
        arity: (3, 4),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Gives permits back; what was charged stays: domain id [FAILED]",
    },
    Row {
        name: Name::Renew,
        upper: "QUELL.RENEW",
        lower: "quell.renew",
        arity: (3, 3),
        key: 0,
        flags: &["write", "fast"],
        group: "module",
        summary: "Begins a lease or a hold anew: domain id",
    },
    Row {
        name: Name::Ping,
        upper: "PING",
        lower: "ping",
        arity: (1, 2),
        key: 0,
        flags: &["fast"],
        group: "connection",
        summary: "Answers PONG, or the message",
    },
    Row {
        name: Name::Echo,
        upper: "ECHO",
        lower: "echo",
        arity: (2, 2),
        key: 0,
        flags: &["fast"],
        group: "connection",
        summary: "Answers the message",
    },
    Row {
        name: Name::Hello,
        upper: "HELLO",
        lower: "hello",
        arity: (1, MANY),
        key: 0,
        flags: &["no_auth", "fast"],
        group: "connection",
        summary: "Chooses the protocol: [2|3 [AUTH user password] [SETNAME name]]",
    },
    Row {
        name: Name::Auth,
        upper: "AUTH",
        lower: "auth",
        arity: (2, 3),
        key: 0,
        flags: &["no_auth", "fast"],
        group: "connection",
        summary: "Shows credentials: [user] password",
    },
    Row {
        name: Name::Client,
        upper: "CLIENT",
        lower: "client",
        arity: (2, MANY),
        key: 0,
        flags: &["fast"],
        group: "connection",
        summary: "Names connections and tells about them: SETNAME, GETNAME, SETINFO, ID, INFO, LIST, NO-EVICT, NO-TOUCH",
    },
    Row {
        name: Name::Command,
        upper: "COMMAND",
        lower: "command",
        arity: (1, MANY),
        key: 0,
        flags: &["fast"],
        group: "server",
        summary: "Tells about the commands: [COUNT | LIST | DOCS [name ..] | INFO [name ..]]",
    },
    Row {
        name: Name::Info,
        upper: "INFO",
        lower: "info",
        arity: (1, MANY),
        key: 0,
        flags: &["fast"],
        group: "server",
        summary: "Tells about the server: [section ..]",
    },
    Row {
        name: Name::Select,
        upper: "SELECT",
        lower: "select",
        arity: (2, 2),
        key: 0,
        flags: &["fast"],
        group: "connection",
        summary: "Chooses a database; there is one, 0",
    },
    Row {
        name: Name::Multi,
        upper: "MULTI",
        lower: "multi",
        arity: (1, 1),
        key: 0,
        flags: &["fast"],
        group: "transactions",
        summary: "Begins to queue commands",
    },
    Row {
        name: Name::Exec,
        upper: "EXEC",
        lower: "exec",
        arity: (1, 1),
        key: 0,
        flags: &["fast"],
        group: "transactions",
        summary: "Answers all queued commands, in order; other connections may come in between",
    },
    Row {
        name: Name::Discard,
        upper: "DISCARD",
        lower: "discard",
        arity: (1, 1),
        key: 0,
        flags: &["fast"],
        group: "transactions",
        summary: "Forgets the queued commands",
    },
    Row {
        name: Name::Quit,
        upper: "QUIT",
        lower: "quit",
        arity: (1, MANY),
        key: 0,
        flags: &["no_auth", "fast"],
        group: "connection",
        summary: "Closes the connection",
    },
    Row {
        name: Name::Reset,
        upper: "RESET",
        lower: "reset",
        arity: (1, 1),
        key: 0,
        flags: &["no_auth", "fast"],
        group: "connection",
        summary: "Makes the connection as it was when it began",
    },
];

/// The row of a command, whatever the case of its name.
pub(super) fn find(name: &[u8]) -> Option<&'static Row> {
    ROWS.iter().find(|row| {
        let upper = row.upper.as_bytes();
        // The cheap comparison first: clients send capitals.
        upper == name || upper.eq_ignore_ascii_case(name)
    })
}

impl Row {
    pub(super) const fn takes(&self, args: usize) -> bool {
        self.arity.0 <= args && args <= self.arity.1
    }

    /// As Redis says it: exact, or minus the least.
    fn redis_arity(&self) -> i64 {
        let least = i64::try_from(self.arity.0).unwrap_or(i64::MAX);
        if self.arity.0 == self.arity.1 {
            least
        } else {
            -least
        }
    }

    fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.array(10);
        encoder.bulk(self.lower.as_bytes());
        encoder.integer(self.redis_arity());
        encoder.set(self.flags.len());
        for flag in self.flags {
            encoder.simple(flag);
        }
        // First key, last key, step.
        encoder.integer(self.key);
        encoder.integer(self.key);
        encoder.integer(self.key);
        // Access categories, hints, key specifications, subcommands: none.
        encoder.set(0);
        encoder.array(0);
        encoder.array(0);
        encoder.array(0);
    }

    fn write_docs(&self, encoder: &mut Encoder<'_>) {
        encoder.bulk(self.lower.as_bytes());
        encoder.map(3);
        encoder.bulk(b"summary");
        encoder.bulk(self.summary.as_bytes());
        encoder.bulk(b"since");
        encoder.bulk(b"0.1.0");
        encoder.bulk(b"group");
        encoder.bulk(self.group.as_bytes());
    }
}

/// `COMMAND ...`: a question about the table, which answers itself.
#[derive(Clone, Copy, Debug)]
pub struct TableRequest<'a>(Question<'a>);

#[derive(Clone, Copy, Debug)]
enum Question<'a> {
    All,
    Count,
    List,
    Docs(Args<'a>),
    Info(Args<'a>),
}

impl<'a> TableRequest<'a> {
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let Some(subcommand) = args.get(0) else {
            return Ok(Self(Question::All));
        };
        let rest = args.skip(1);
        let alone = |question, name| match rest.is_empty() {
            true => Ok(question),
            false => Err(CommandError::Arity(name)),
        };
        let question = match subcommand.to_ascii_uppercase().as_slice() {
            b"COUNT" => alone(Question::Count, "command|count")?,
            b"LIST" => alone(Question::List, "command|list")?,
            b"DOCS" => Question::Docs(rest),
            b"INFO" => Question::Info(rest),
            _ => {
                return Err(CommandError::Subcommand {
                    command: "COMMAND",
                    subcommand: echo(subcommand, 128),
                    known: "COUNT, LIST, DOCS or INFO",
                });
            }
        };
        Ok(Self(question))
    }

    /// Writes the reply.
    pub fn write_reply(&self, encoder: &mut Encoder<'_>) {
        match self.0 {
            Question::Info(names) if !names.is_empty() => {
                encoder.array(names.len());
                for name in names {
                    match find(name) {
                        Some(row) => row.write(encoder),
                        None => encoder.null_array(),
                    }
                }
            }
            Question::All | Question::Info(_) => {
                encoder.array(ROWS.len());
                for row in &ROWS {
                    row.write(encoder);
                }
            }
            Question::Count => encoder.integer(i64::try_from(ROWS.len()).unwrap_or(i64::MAX)),
            Question::List => {
                encoder.array(ROWS.len());
                for row in &ROWS {
                    encoder.bulk(row.lower.as_bytes());
                }
            }
            Question::Docs(names) => {
                let asked = |row: &&Row| {
                    let same = |name: &[u8]| row.upper.as_bytes().eq_ignore_ascii_case(name);
                    names.is_empty() || names.iter().any(same)
                };
                encoder.map(ROWS.iter().filter(asked).count());
                for row in ROWS.iter().filter(asked) {
                    row.write_docs(encoder);
                }
            }
        }
    }
}
