//! `quell token`: makes the tokens and the hashed passwords that callers of a server show.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, IsTerminal as _, Write as _, stdin};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use quell_host::access::{NewToken, NodeEntry, Role, TokenName, check_credentials, password_entry};
use quell_host::fleet_member::read_members;
use serde::Serialize;

use crate::exit::{Exit, Usage};
use crate::output;

/// Make tokens and passwords, which callers of a server with `--credentials` have to show
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell token new checkout --role ask --domain shop --append credentials.toml
  quell token password ada --role read --role admin --append credentials.toml
  quell serve --credentials credentials.toml")]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(New),
    Password(Password),
}

/// Make a token of 256 random bits
///
/// The token is printed to standard output and kept nowhere: a server keeps its SHA-256 only. Without
/// --append, the entry for the file of credentials is printed to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell token new checkout --role ask --domain shop
  quell token new ops --role read --role admin --append credentials.toml > ops.token
  quell token new --member node-7 --weight 2 --append credentials.toml > node-7.token")]
struct New {
    /// The name of its bearer, for errors and logs; without it, what --member says
    #[arg(required_unless_present = "members")]
    name: Option<TokenName>,

    /// Role of the bearer: ask, read, admin, policy, metrics, node or proxy; may be repeated. With --member the
    /// default is node
    #[arg(
        long = "role",
        value_name = "ROLE",
        required_unless_present = "members",
        value_delimiter = ','
    )]
    roles: Vec<Role>,

    /// For a node: the member of the fleet that it may be, such as node-7, or several such as 1..20, instead of
    /// any; may be repeated
    #[arg(long = "member", value_name = "MEMBER", value_parser = read_members, value_delimiter = ',')]
    members: Vec<String>,

    /// For a node: the largest weight that it may have; 1 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    weight: Option<u32>,

    /// For a node: a group that it may be in, instead of any that rules name; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,

    /// A domain that it is for, instead of all; may be repeated
    #[arg(long = "domain", short, value_name = "DOMAIN")]
    domains: Vec<String>,

    /// The file of credentials to add its entry to; made if there is none, for its owner alone (mode 0600)
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,

    /// Print the token and its entry as JSON
    #[arg(long, conflicts_with = "append")]
    json: bool,
}

/// Hash the password of a person
///
/// The password is asked for twice and not shown; without a terminal it is the first line of standard
/// input. It has at least 12 characters. Its entry for the file of credentials, with its hash (Argon2id), is
/// printed to standard output, or added to the file of --append. People show it with `curl -u NAME` or in a
/// browser; programs have tokens.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell token password ada --role read --role admin --append credentials.toml
  pass show quell/ada | quell token password ada --role read")]
struct Password {
    /// The name that the person logs in with
    name: TokenName,

    /// Role of the person: read, admin or metrics; may be repeated
    #[arg(
        long = "role",
        value_name = "ROLE",
        required = true,
        value_delimiter = ','
    )]
    roles: Vec<Role>,

    /// A domain that the person may see, instead of all; may be repeated
    #[arg(long = "domain", short, value_name = "DOMAIN")]
    domains: Vec<String>,

    /// The file of credentials to add the entry to; made if there is none, for its owner alone (mode 0600)
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,
}

#[derive(Serialize)]
struct Made<'a> {
    token: &'a str,
    sha256: String,
    entry: &'a str,
}

impl Token {
    /// Does what was asked.
    ///
    /// # Errors
    /// If the token cannot be printed, no password can be read, or the entry cannot be added.
    pub(crate) fn run(self) -> Result<Exit> {
        match self.command {
            Command::New(new) => new.run(),
            Command::Password(password) => password.run(),
        }
    }
}

impl New {
    fn run(self) -> Result<Exit> {
        let token = NewToken::generate().context("cannot make a token")?;
        let name = match (self.name, self.members.first()) {
            (Some(name), _) => name,
            (None, Some(member)) => member.parse().map_err(Usage)?,
            (None, None) => bail!(Usage(
                "the name is empty: write the name of the bearer".to_owned()
            )),
        };
        let roles = match self.roles.is_empty() {
            true => vec![Role::Node],
            false => self.roles,
        };
        let some = |texts: Vec<String>| (!texts.is_empty()).then_some(texts);
        let node = NodeEntry::new(some(self.members), self.weight, some(self.groups));
        let entry = token.entry_of_node(name, roles, some(self.domains), node);
        let entry = entry.map_err(Usage)?;
        if self.json {
            let sha256 = token.digest().to_string();
            output::json(&Made {
                token: token.text(),
                sha256,
                entry: &entry,
            })?;
            return Ok(Exit::Fine);
        }
        match &self.append {
            Some(path) => {
                append(path, &entry)?;
                output::line(token.text())?;
            }
            None => {
                output::line(token.text())?;
                output::note(format_args!(
                    "\nAdd this to the file of credentials (or use --append FILE); the token above is \
                     shown only now:\n\n{entry}"
                ));
            }
        }
        Ok(Exit::Fine)
    }
}

impl Password {
    fn run(self) -> Result<Exit> {
        let password = read_password()?;
        let domains = (!self.domains.is_empty()).then_some(self.domains);
        let entry = password_entry(self.name, &password, self.roles, domains);
        let entry = entry.map_err(Usage)?;
        match &self.append {
            Some(path) => append(path, &entry)?,
            None => output::line(entry.trim_end())?,
        }
        Ok(Exit::Fine)
    }
}

/// A password from the terminal, which does not show it, or from the first line of standard input.
fn read_password() -> Result<String> {
    if !stdin().is_terminal() {
        let mut line = String::new();
        let read = stdin().read_line(&mut line);
        read.context("cannot read the password from standard input")?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let ask = |prompt| rpassword::prompt_password(prompt).context("cannot read the password");
    let password = ask("Password: ")?;
    if ask("The same again: ")? != password {
        return Err(Usage("the two passwords differ: write the same twice".to_owned()).into());
    }
    Ok(password)
}

/// Adds `entry` to the file at `path`, if the file is sound with it.
fn append(path: &Path, entry: &str) -> Result<()> {
    let shown = path.display();
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let gap = match before.as_str() {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let added = format!("{gap}{entry}");
    check_credentials(&shown.to_string(), &(before + &added))?;
    // A new file is its owner's alone; who shares it with the server's group says so by its permissions.
    let mut options = OpenOptions::new();
    options.mode(0o600);
    // One write, so that a server that reads meanwhile finds either the old file or the new one.
    let file = options.create(true).append(true).open(path);
    file.and_then(|mut file| {
        file.write_all(added.as_bytes())?;
        file.sync_all()
    })
    .with_context(|| format!("cannot write {shown}"))
}
