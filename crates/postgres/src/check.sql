-- Fails if the schema that replaces "csalock" has something other than the objects of this format.
DO $$
DECLARE known int;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('"csalock"')) THEN
    RETURN;
  END IF;
  -- This look comes second: another process may have created all of them meanwhile.
  IF to_regclass('"csalock".format') IS NULL THEN
    RAISE EXCEPTION 'has tables of another program' USING ERRCODE = 'CSA01';
  END IF;
  SELECT number INTO known FROM "csalock".format;
  IF known IS DISTINCT FROM 2 THEN
    RAISE EXCEPTION 'has format %, this csalock knows 2', known USING ERRCODE = 'CSA01';
  END IF;
END $$;
