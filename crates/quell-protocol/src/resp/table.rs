//! The table of commands: their arguments, and what `COMMAND` says about them.

use super::encode::Encoder;

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: Name,
    /// In capitals, for lookups.
    pub(super) upper: &'static str,
    /// The least and the most arguments, including the name.
    arity: (usize, usize),
    kind: CommandKind,
    summary: &'static str,
    /// Its arguments, for people.
    usage: &'static str,
}

/// The kinds of commands.
#[derive(Clone, Copy, Debug)]
enum CommandKind {
    /// Charges, or changes what is charged.
    Charge,
    /// Asks without charging.
    Ask,
    /// Allowed before `AUTH`.
    Open,
    Connection,
    Server,
    Transaction,
}

/// No upper bound of its own: the frame's bound applies.
const MANY: usize = usize::MAX;

/// Declares [`Name`] and [`ROWS`]: each command, how many words it has, its kind, its summary and its
/// arguments.
macro_rules! commands {
    ($($name:ident = $upper:literal, $least:literal..=$most:expr, $kind:ident, $summary:literal, $usage:literal;)*) => {
        /// The commands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Name {
            $($name,)*
        }

        /// The commands, the most frequent first: a lookup searches in this order.
        pub(super) const ROWS: [Row; [$($upper),*].len()] = [$(
            Row {
                name: Name::$name,
                upper: $upper,
                arity: ($least, $most),
                kind: CommandKind::$kind,
                summary: $summary,
                usage: $usage,
            },
        )*];
    };
}

commands! {
    Throttle = "CL.THROTTLE", 5..=6, Charge, "Asks and charges a limit that comes with the call",
        "key max_burst count period [quantity]";
    Acquire = "QUELL.ACQUIRE", 2..=MANY, Charge, "Asks and charges the rules of a domain",
        "domain [COST n] [name value ..]";
    Peek = "QUELL.PEEK", 2..=MANY, Ask, "Asks the rules of a domain and charges nothing",
        "domain [COST n] [name value ..]";
    Reserve = "QUELL.RESERVE", 4..=MANY, Charge, "Charges an estimate that is settled later",
        "domain id|* hold_ms [COST n] [name value ..]";
    Settle = "QUELL.SETTLE", 4..=MANY, Charge, "Pays what a reservation cost in truth",
        "domain id actual [actual ..]";
    Cancel = "QUELL.CANCEL", 3..=3, Charge, "Gives back all that an id holds", "domain id";
    Release = "QUELL.RELEASE", 3..=4, Charge, "Gives permits back; what was charged stays",
        "domain id [FAILED]";
    Renew = "QUELL.RENEW", 3..=3, Charge, "Begins a lease or a hold anew", "domain id";
    Override = "QUELL.OVERRIDE", 4..=MANY, Charge, "Reads and changes the numbers of single keys",
        "SET domain rule json name value [name value ..] | GET domain rule name value [..] | DEL domain rule name value [..] | SCAN domain cursor [COUNT n]";
    Ping = "PING", 1..=2, Connection, "Answers PONG, or the message", "[message]";
    Echo = "ECHO", 2..=2, Connection, "Answers the message", "message";
    Hello = "HELLO", 1..=MANY, Open, "Chooses the protocol",
        "[2|3 [AUTH user password] [SETNAME name]]";
    Auth = "AUTH", 2..=3, Open, "Shows credentials", "[user] password";
    Client = "CLIENT", 2..=MANY, Connection, "Names connections and tells about them",
        "SETNAME name | GETNAME | SETINFO LIB-NAME|LIB-VER value | ID | INFO | LIST | NO-EVICT ON|OFF | NO-TOUCH ON|OFF";
    Command = "COMMAND", 1..=MANY, Server, "Tells about the commands",
        "[COUNT | LIST | DOCS [name ..] | INFO [name ..]]";
    Info = "INFO", 1..=MANY, Server, "Tells about the server", "[section ..]";
    Select = "SELECT", 2..=2, Connection, "Chooses a database; there is one", "0";
    Multi = "MULTI", 1..=1, Transaction, "Begins to queue commands", "";
    Exec = "EXEC", 1..=1, Transaction,
        "Answers all queued commands, in order; other connections may come in between", "";
    Discard = "DISCARD", 1..=1, Transaction, "Forgets the queued commands", "";
    Quit = "QUIT", 1..=MANY, Open, "Closes the connection", "";
    Reset = "RESET", 1..=1, Open, "Makes the connection as it was when it began", "";
}

impl CommandKind {
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Charge => &["write", "fast"],
            Self::Ask => &["readonly", "fast"],
            Self::Open => &["no_auth", "fast"],
            Self::Connection | Self::Server | Self::Transaction => &["fast"],
        }
    }

    const fn group(self) -> &'static str {
        match self {
            Self::Charge | Self::Ask => "module",
            Self::Open | Self::Connection => "connection",
            Self::Server => "server",
            Self::Transaction => "transactions",
        }
    }
}

/// The row of a command, whatever the case of its name.
pub(super) fn find(name: &[u8]) -> Option<&'static Row> {
    ROWS.iter().find(|row| {
        let upper = row.upper.as_bytes();
        // The cheap comparison first: clients send capitals.
        upper == name || upper.eq_ignore_ascii_case(name)
    })
}

/// Usage of a command, such as `QUELL.CANCEL domain id`; of a subcommand (`client|id`) the words of its
/// command.
pub(super) fn usage(name: &str) -> String {
    let command = name.split('|').next().unwrap_or_default();
    match find(command.as_bytes()) {
        Some(row) => format!("{} {}", row.upper, row.usage).trim_end().to_owned(),
        None => name.to_owned(),
    }
}

impl Row {
    pub(super) const fn takes(&self, args: usize) -> bool {
        self.arity.0 <= args && args <= self.arity.1
    }

    /// The number in the form of Redis: exact, or minus the least.
    fn redis_arity(&self) -> i64 {
        let least = i64::try_from(self.arity.0).unwrap_or(i64::MAX);
        if self.arity.0 == self.arity.1 {
            least
        } else {
            -least
        }
    }

    pub(super) fn write_name(&self, encoder: &mut Encoder<'_>) {
        encoder.bulk(&self.upper.as_bytes().to_ascii_lowercase());
    }

    pub(super) fn write(&self, encoder: &mut Encoder<'_>) {
        encoder.array(10);
        self.write_name(encoder);
        encoder.integer(self.redis_arity());
        encoder.set(self.kind.flags().len());
        for flag in self.kind.flags() {
            encoder.simple(flag);
        }
        // First key, last key, step: positions counted from 0; 0 for a command without keys.
        for _ in 0..3 {
            encoder.integer(i64::from(self.name == Name::Throttle));
        }
        // Access categories, hints, key specifications, subcommands: none.
        encoder.set(0);
        for _ in 0..3 {
            encoder.array(0);
        }
    }

    pub(super) fn write_docs(&self, encoder: &mut Encoder<'_>) {
        let summary = match self.usage {
            "" => self.summary.to_owned(),
            usage => format!("{}: {usage}", self.summary),
        };
        self.write_name(encoder);
        encoder.map(3);
        for text in [
            "summary",
            &summary,
            "since",
            "0.1.0",
            "group",
            self.kind.group(),
        ] {
            encoder.bulk(text.as_bytes());
        }
    }
}
