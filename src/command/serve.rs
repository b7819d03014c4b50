//! `csalock serve`

use std::io::{self, IsTerminal};

use super::context::Context;
use crate::cli::Serve;
use crate::exit::Exit;
use lock::Error;
use ssh::serve_at;

pub(super) fn run(context: &Context, options: &Serve) -> anyhow::Result<Exit> {
    if io::stdin().is_terminal() {
        let what = "serve: standard input is a terminal, not a client";
        return Err(Error::invalid(what, "use the store ssh://HOST/PATH on another host").into());
    }
    let location = engine::location(&options.directory, &context.current)?;
    let is_used = || {
        let mut is_used = false;
        context.engine(&location)?.for_each_lock(&mut |status| {
            is_used |= !status.is_ok_and(|status| status.record.is_free() && status.record.waiters.is_empty());
            Ok(())
        })?;
        Ok(is_used)
    };
    serve_at(&location, &is_used, context.host.clone())?;
    Ok(Exit::Done)
}
