//! Parse: from the command line and the environment to a command, or to what is wrong with them.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use quell_protocol::{is_printable, printable};

use crate::advice::advise;
use crate::command::{Cli, Command};
use crate::exit::Exit;
use crate::output;

/// Reads the command line and the variables: the command, and the matches of its own arguments.
///
/// # Errors
/// Exit code, once the mistakes have been printed.
pub(crate) fn parse() -> Result<(Command, ArgMatches), Exit> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let matches = Cli::command()
        .try_get_matches_from(&arguments)
        .map_err(|error| print_error(&advise(shown(error, &arguments), &arguments), &arguments))?;
    let cli = Cli::from_arg_matches(&matches)
        .map_err(|error| print_error(&shown(error, &arguments), &arguments))?;
    let own = matches.subcommand().map(|(_, own)| own.clone());
    Ok((cli.command, own.unwrap_or_default()))
}

/// Prints an error; help and versions are such, too.
fn print_error(error: &Error, arguments: &[OsString]) -> Exit {
    match variable(error, arguments) {
        Some((argument, variable)) => {
            let said = error.render().to_string();
            let said = said.replace(
                &format!("'{argument}'"),
                &format!("the variable {variable}"),
            );
            output::note(said.trim_end());
        }
        // Nobody is left to be told that nothing can be printed.
        None => drop(error.print()),
    }
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Fine
    }
}

/// The same error about arguments that a terminal only shows: what it repeats of the command line may be
/// a stranger's, whom a script put there.
fn shown(error: Error, arguments: &[OsString]) -> Error {
    let is_harmless = |argument: &OsString| argument.to_str().is_some_and(is_shown);
    if arguments.iter().all(is_harmless) {
        return error;
    }
    let shown = |argument: &OsString| printable(&argument.to_string_lossy()).into_owned();
    let again = Cli::command().try_get_matches_from(arguments.iter().map(shown));
    let mut error = again.err().unwrap_or(error);
    // What was wrong may be just that character: then the value is right once it is escaped.
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let value = ContextValue::String(printable(value).into_owned());
        error.insert(ContextKind::InvalidValue, value);
    }
    error
}

fn is_shown(text: &str) -> bool {
    text.chars().all(is_printable)
}

/// The argument of a wrong value that came from a variable, and the variable.
fn variable(error: &Error, arguments: &[OsString]) -> Option<(String, String)> {
    if !matches!(
        error.kind(),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
    ) {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let mut root = Cli::command();
    // Only then do arguments know how they are shown.
    root.build();
    let mut commands = vec![root];
    while let Some(command) = commands.pop() {
        let mut own = command.get_arguments();
        if let Some(arg) = own.find(|arg| arg.to_string() == *argument) {
            let flag = format!("--{}", arg.get_long()?);
            let with_value = format!("{flag}=");
            let is_said = arguments.iter().any(|said| {
                let said = said.to_string_lossy();
                said == flag || said.starts_with(&with_value)
            });
            let variable = arg.get_env()?.to_string_lossy().into_owned();
            let is_set = std::env::var_os(&variable).is_some();
            return (is_set && !is_said).then(|| (argument.clone(), variable));
        }
        commands.extend(command.get_subcommands().cloned());
    }
    None
}
