//! Login: SCRAM-SHA-256, bound to the TLS connection if the server can do that; MD5; and a password in clear. The file
//! of libpq with passwords.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;

use super::errors::{SqlError, said, strange};
use super::session::{Done, Session, invalid};
use super::settings::{Binding, Settings, Target};
use lock::name::escape_path;

/// Maximum number of rounds of a password's hash, which a server may ask for.
const MOST_ROUNDS: u32 = 1_000_000;

pub(super) fn log_in(session: &mut Session, settings: &Settings, target: &Target) -> Done<()> {
    let permit = |method: &str| {
        let excluded = || denied(format!("it asks for the login \"{method}\", which require_auth excludes"));
        settings.methods.permit(method).then_some(()).ok_or_else(excluded)
    };
    let password = || match &target.password {
        Ok(password) => Ok(password.as_bytes()),
        Err(why) => Err(denied(format!("it asks for a password: {why}"))),
    };
    let (mut has_proved, mut is_bound) = (false, false);
    loop {
        match session.receive()? {
            Message::AuthenticationOk => break,
            Message::AuthenticationCleartextPassword => {
                permit("password")?;
                session.send(|buffer| frontend::password_message(password()?, buffer).map_err(invalid))?;
            }
            Message::AuthenticationMd5Password(body) => {
                permit("md5")?;
                let hash = md5_hash(settings.user.as_bytes(), password()?, body.salt());
                session.send(|buffer| frontend::password_message(hash.as_bytes(), buffer).map_err(invalid))?;
            }
            Message::AuthenticationSasl(body) => {
                permit("scram-sha-256")?;
                is_bound = scram(session, settings.binding, &body, password()?)?;
            }
            Message::NoticeResponse(_) => continue,
            _ => return Err(strange("it asks for a login that csalock does not have (GSSAPI, SSPI, OAuth)")),
        }
        has_proved = true;
    }
    if !has_proved {
        permit("none")?;
    }
    if settings.binding == Binding::Require && !is_bound {
        return Err(denied("it let us in without channel binding, which channel_binding=require demands".into()));
    }
    Ok(())
}

fn denied(why: String) -> SqlError {
    said("28P01", why)
}

/// Checks that the server knows the password too (RFC 5802, RFC 7677). Returns true if the login is bound to TLS.
fn scram(session: &mut Session, binding: Binding, body: &AuthenticationSaslBody, password: &[u8]) -> Done<bool> {
    let offers: Vec<&str> = body.mechanisms().collect().map_err(invalid)?;
    let end_point = if binding == Binding::Disable { None } else { session.end_point() };
    let (mechanism, channel, is_bound) = match end_point {
        Some(hash) if offers.contains(&SCRAM_SHA_256_PLUS) => {
            (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash), true)
        }
        _ if binding == Binding::Require => {
            return Err(denied(
                "the login cannot be bound to the connection, which channel_binding=require demands".into(),
            ));
        }
        // The server learns that it was not offered, in case another one in between removed the offer.
        Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested(), false),
        None => (SCRAM_SHA_256, ChannelBinding::unsupported(), false),
    };
    if !offers.contains(&mechanism) {
        return Err(strange("it offers no login that csalock has"));
    }
    let mut scram = ScramSha256::new(password, channel);
    session.send(|buffer| frontend::sasl_initial_response(mechanism, scram.message(), buffer).map_err(invalid))?;
    let Message::AuthenticationSaslContinue(challenge) = session.receive()? else { return Err(out_of_step()) };
    if rounds(challenge.data()).is_none_or(|rounds| rounds > MOST_ROUNDS) {
        return Err(out_of_step());
    }
    scram.update(challenge.data()).map_err(|_| out_of_step())?;
    session.send(|buffer| frontend::sasl_response(scram.message(), buffer).map_err(invalid))?;
    let Message::AuthenticationSaslFinal(answer) = session.receive()? else { return Err(out_of_step()) };
    scram.finish(answer.data()).map_err(|_| strange("it does not know the password"))?;
    Ok(is_bound)
}

fn rounds(challenge: &[u8]) -> Option<u32> {
    let challenge = std::str::from_utf8(challenge).ok()?;
    challenge.split(',').find_map(|part| part.strip_prefix("i="))?.parse().ok()
}

fn out_of_step() -> SqlError {
    strange("an invalid step of SCRAM")
}

/// Returns the password of the first line `HOST:PORT:DATABASE:USER:PASSWORD` that matches, or the reason why there is none.
/// As in libpq, a file that other users may read does not count.
pub(super) fn password_of(file: &Path, wanted: &[&str; 4]) -> std::result::Result<String, String> {
    let none = || "none is known".to_string();
    let found = std::fs::metadata(file).map_err(|_| none())?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        let (file, mode) = (escape_path(file), found.mode() & 0o777);
        return Err(format!("{file} is not read, because other users may read it (mode {mode:04o}; use chmod 600)"));
    }
    let text = std::fs::read_to_string(file).map_err(|_| none())?;
    let password = text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (mut fields, mut characters) = (vec![String::new()], line.chars());
        while let Some(character) = characters.next() {
            match character {
                ':' if fields.len() < 5 => fields.push(String::new()),
                '\\' => fields.last_mut()?.extend(characters.next()),
                other => fields.last_mut()?.push(other),
            }
        }
        let matches = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        fields.pop().filter(|_| fields.len() == 4 && matches)
    });
    password.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pgpass");
        std::fs::write(&file, "# h:*:*:*:no\nh:1:d:u:o\\:n\\\\e\n*:*:*:u:a:b\nshort\n*:*:*:*:any\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let of = |wanted: [&str; 4]| password_of(&file, &wanted);
        assert_eq!(of(["h", "1", "d", "u"]).as_deref(), Ok("o:n\\e"));
        assert_eq!(of(["h", "2", "d", "u"]).as_deref(), Ok("a:b"));
        assert_eq!(of(["h", "2", "d", "v"]).as_deref(), Ok("any"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(of(["h", "1", "d", "u"]).unwrap_err().ends_with("(mode 0640; use chmod 600)"));
        assert_eq!(password_of(&place.path().join("none"), &["", "", "", ""]), Err("none is known".to_string()));
    }
}
