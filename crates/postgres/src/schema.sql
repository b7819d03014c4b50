-- Objects of a store: one transaction, in which the name of the schema replaces "csalock". Other roles may create
-- functions and operators in the schemas of search_path, so the caller sets it to pg_catalog before this, and each
-- function sets it again. A view keeps the functions and operators that it was created with.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('"csalock"')) THEN
    RAISE EXCEPTION 'exists' USING ERRCODE = 'duplicate_schema';
  ELSIF to_regnamespace('"csalock"') IS NULL THEN
    CREATE SCHEMA "csalock";
  END IF;
END $$;
CREATE TABLE "csalock".format(number int NOT NULL);
INSERT INTO "csalock".format VALUES (2);
CREATE TABLE "csalock".records(name bytea PRIMARY KEY, number bigint NOT NULL, body bytea NOT NULL);
CREATE TABLE "csalock".removed(bucket int PRIMARY KEY, number bigint NOT NULL) WITH (fillfactor = 25);
-- Numbers start above the clock in microseconds, so tokens rise even if the schema was dropped and is created again.
INSERT INTO "csalock".removed SELECT bucket, floor(extract(epoch FROM now()) * 1000000)::bigint
  FROM generate_series(0, 255) bucket;
CREATE TABLE "csalock".history(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, line bytea NOT NULL,
 at timestamptz NOT NULL DEFAULT clock_timestamp());
-- The server's identity and timeline; an error on a standby.
CREATE FUNCTION "csalock".origin() RETURNS text LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
 SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) FROM pg_control_system() $$;
CREATE FUNCTION "csalock".change(names bytea[], expects bigint[], guards bigint[], bodies bytea[], lines bytea[])
RETURNS TABLE(number bigint, seen bigint, body bytea) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  high bigint;
  last bigint := 0;
  buckets int[];
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    RAISE EXCEPTION 'synchronous_commit is off' USING ERRCODE = 'CSA02';
  END IF;
  -- Creations and removals of a bucket take place one after the other.
  SELECT array_agg(get_byte(sha256(names[i]), 0) ORDER BY i) INTO buckets FROM generate_subscripts(names, 1) i;
  PERFORM FROM "csalock".removed r WHERE r.bucket IN (SELECT buckets[i] FROM generate_subscripts(names, 1) i
    WHERE expects[i] IS NULL OR bodies[i] IS NULL) ORDER BY r.bucket FOR UPDATE;
  FOR i IN 1 .. cardinality(names) LOOP
    SELECT r.number, r.body INTO seen, body FROM "csalock".records r WHERE r.name = names[i] FOR UPDATE;
    SELECT r.number INTO high FROM "csalock".removed r WHERE r.bucket = buckets[i];
    IF seen IS DISTINCT FROM expects[i] OR (expects[i] IS NULL AND high > guards[i]) THEN
      -- A conflict changes nothing, so it need not wait for a disk.
      PERFORM set_config('synchronous_commit', 'off', true);
      RETURN NEXT;
      RETURN;
    END IF;
    last := greatest(last, seen, high);
  END LOOP;
  number := last + 1;
  FOR i IN 1 .. cardinality(names) LOOP
    IF bodies[i] IS NULL THEN
      DELETE FROM "csalock".records r WHERE r.name = names[i];
      UPDATE "csalock".removed r SET number = last + 1 WHERE r.bucket = buckets[i];
    ELSIF expects[i] IS NULL THEN
      INSERT INTO "csalock".records VALUES (names[i], number, bodies[i]);
    ELSE
      UPDATE "csalock".records r SET number = last + 1, body = bodies[i] WHERE r.name = names[i];
    END IF;
  END LOOP;
  INSERT INTO "csalock".history(line) SELECT line FROM unnest(lines) line;
  body := NULL;
  RETURN NEXT;
END $$;
-- Views for people. A body that is not a record has no rows.
CREATE FUNCTION "csalock".json(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
  SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN convert_from(body, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END $$;
CREATE VIEW "csalock".entries AS
SELECT list, coalesce(j.record ->> 'name', encode(name, 'escape')) AS name, split_part(e #>> '{owner,processes,0}', ':', 1)::int AS pid,
 e #>> '{owner,host}' AS host, (e #>> '{owner,uid}')::int AS uid, e #>> '{owner,command}' AS command,
 e #>> '{owner,label}' AS label, to_timestamp((e ->> 'since')::bigint / 1000.0) AS since,
 to_timestamp((e #>> '{lifetime,expires_at,wall}')::bigint / 1000.0) AS expires, e ->> 'mode' AS mode,
 coalesce((e ->> 'token')::bigint, number) AS token
FROM "csalock".records, LATERAL (SELECT "csalock".json(body) AS record) j, unnest(ARRAY['holders', 'waiters']) list,
 jsonb_array_elements(CASE jsonb_typeof(j.record -> list) WHEN 'array' THEN j.record -> list END) e;
CREATE VIEW "csalock".holders AS
SELECT name, pid, host, uid, command, label, since, expires, mode, token FROM "csalock".entries WHERE list = 'holders';
CREATE VIEW "csalock".waiters AS
SELECT name, pid, host, uid, command, label, since, mode FROM "csalock".entries WHERE list = 'waiters';
