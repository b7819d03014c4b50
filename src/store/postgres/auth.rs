//! Login: SCRAM-SHA-256, MD5, and a password in clear.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use ring::{digest, hmac, pbkdf2};

use super::errors::Trouble;
use super::session::{Done, Fields, Session, framed};
use super::settings::Settings;

/// Maximum number of rounds of a password's hash, which a server may ask for.
const MOST_ROUNDS: u32 = 1_000_000;

/// Logs in, as the server asks for it.
pub(super) fn log_in(session: &mut Session, settings: &Settings) -> Done<()> {
    loop {
        let (kind, body) = session.receive()?;
        let mut fields = Fields(&body);
        let method = if kind == b'R' { u32::from_be_bytes(fields.array()?) } else { continue };
        let password = || match &settings.password {
            Some(password) => Ok(&password[..]),
            None => Err(Trouble::Said("28P01".into(), "it asks for a password, and none is known".into())),
        };
        match method {
            0 => return Ok(()),
            3 => session.write(&framed(Some(b'p'), &[password()?.as_bytes(), b"\0"].concat()))?,
            5 => {
                let inner = hex(&[password()?.as_bytes(), settings.user.as_bytes()]);
                let outer = hex(&[inner.as_bytes(), fields.bytes(4)?]);
                session.write(&framed(Some(b'p'), format!("md5{outer}\0").as_bytes()))?;
            }
            10 => scram(session, password()?)?,
            11 | 12 => {}
            _ => return Err(Trouble::strange("it asks for a login that csalock does not have: GSSAPI or SSPI")),
        }
    }
}

fn hex(parts: &[&[u8]]) -> String {
    Md5::digest(parts.concat()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Proves the password, and checks that the server knows it too (RFC 5802, RFC 7677).
fn scram(session: &mut Session, password: &str) -> Done<()> {
    let mut random = [0; 18];
    getrandom::fill(&mut random).map_err(|_| Trouble::strange("this system has no random numbers"))?;
    let first = format!("n=,r={}", STANDARD.encode(random));
    let mut begin = b"SCRAM-SHA-256\0".to_vec();
    begin.extend((first.len() as u32 + 3).to_be_bytes());
    begin.extend(format!("n,,{first}").bytes());
    session.write(&framed(Some(b'p'), &begin))?;
    let challenge = sasl(session, 11)?;
    let part = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name));
    let strange = || Trouble::strange("an invalid step of SCRAM");
    let nonce = part("r=").filter(|nonce| nonce.starts_with(&first[5..])).ok_or_else(strange)?;
    let salt = part("s=").and_then(|salt| STANDARD.decode(salt).ok()).ok_or_else(strange)?;
    let rounds = part("i=").and_then(|rounds| rounds.parse().ok()).filter(|rounds| *rounds <= MOST_ROUNDS);
    let rounds = rounds.and_then(std::num::NonZeroU32::new).ok_or_else(strange)?;
    let mut salted = [0; digest::SHA256_OUTPUT_LEN];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password.as_bytes(), &mut salted);
    let client = sign(&salted, b"Client Key");
    let last = format!("c=biws,r={nonce}");
    let all = format!("{first},{challenge},{last}");
    let signature = sign(digest::digest(&digest::SHA256, client.as_ref()).as_ref(), all.as_bytes());
    let proof: Vec<u8> = client.as_ref().iter().zip(signature.as_ref()).map(|(key, sign)| key ^ sign).collect();
    session.write(&framed(Some(b'p'), format!("{last},p={}", STANDARD.encode(proof)).as_bytes()))?;
    let answer = sasl(session, 12)?;
    let verifier = answer.strip_prefix("v=").and_then(|verifier| STANDARD.decode(verifier).ok()).ok_or_else(strange)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, sign(&salted, b"Server Key").as_ref());
    hmac::verify(&key, all.as_bytes(), &verifier).map_err(|_| Trouble::strange("it does not know the password"))
}

fn sign(key: &[u8], message: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message)
}

/// Returns the text of this step of SASL.
fn sasl(session: &mut Session, step: u32) -> Done<String> {
    let (kind, body) = session.receive()?;
    let mut fields = Fields(&body);
    if kind != b'R' || u32::from_be_bytes(fields.array()?) != step {
        return Err(Trouble::strange("an invalid step of SCRAM"));
    }
    String::from_utf8(fields.0.to_vec()).map_err(|_| Trouble::strange("an invalid step of SCRAM"))
}
